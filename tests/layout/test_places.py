"""Where tensors are in the pipeline, and which of their holders counts an element (traps 7, 10)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.errors import LayoutError
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import UNSHARDED, Layout
from nereus.layout.tensors import OPTIMIZER_KINDS, Kind, Place, pipeline_layers
from tests.builders import fused_state, make_emus, make_model, make_state, thin_state
from tests.layout.models import thin_trained_state

SHAPES = [(tp, pp) for tp in range(1, 9) for pp in range(1, 7)]


@given(st.integers(1, 100), st.integers(1, 16))
def test_pipeline_ranks_hold_every_layer_once_in_order(num_layers: int, pp: int) -> None:
    pp = min(pp, num_layers)
    assert [layer for rank in range(pp) for layer in pipeline_layers(num_layers, pp, rank)] == list(range(num_layers))


@given(st.integers(1, 100), st.integers(1, 16))
def test_pipeline_ranks_differ_by_one_layer_at_most(num_layers: int, pp: int) -> None:
    pp = min(pp, num_layers)
    sizes = [len(pipeline_layers(num_layers, pp, rank)) for rank in range(pp)]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(st.integers(1, 100), st.integers(1, 8), st.integers(1, 4))
def test_pipeline_boundaries_nest_for_divisors(num_layers: int, pp: int, factor: int) -> None:
    num_layers += pp * factor
    coarse = {pipeline_layers(num_layers, pp, rank).start for rank in range(pp)}
    fine = {pipeline_layers(num_layers, pp * factor, rank).start for rank in range(pp * factor)}
    assert coarse <= fine


def test_pipeline_of_30_layers_over_4_ranks_loses_none() -> None:
    assert sum(len(pipeline_layers(30, 4, rank)) for rank in range(4)) == 30


def test_pipeline_with_more_ranks_than_layers_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"pp: 7.*6 layers"):
        make_state(make_model(tied=False)).shards(Layout(1, 7), 0)


@pytest.mark.parametrize("pp", [1, 2, 3, 6])
def test_tied_embeddings_are_on_both_ends_and_only_there(pp: int) -> None:
    state = make_state(make_model(tied=True), optimizer=True)
    embeddings = [tensor for tensor in state.tensors if tensor.name == "model.embed_tokens.weight"]
    owners = {t.kind: {r for r in range(pp) if t.boxes(Layout(1, pp), r, state.num_layers)} for t in embeddings}
    assert owners == {kind: {0, pp - 1} for kind in (Kind.PARAMETER, Kind.EXP_AVG, Kind.EXP_AVG_SQ)}


def test_tied_model_has_no_head_of_its_own() -> None:
    assert "lm_head.weight" not in {tensor.name for tensor in make_state(make_model(tied=True)).tensors}


@pytest.mark.parametrize("pp", [1, 2, 3, 6])
def test_untied_ends_have_one_owner_each(pp: int) -> None:
    state = make_state(make_model(tied=False))
    owners = {
        tensor.name: [rank for rank in range(pp) if tensor.boxes(Layout(1, pp), rank, state.num_layers)]
        for tensor in state.tensors
        if tensor.place in (Place.FIRST, Place.LAST)
    }
    assert owners == {"model.embed_tokens.weight": [0], "model.norm.weight": [pp - 1], "lm_head.weight": [pp - 1]}


def test_counters_are_on_every_rank() -> None:
    state = make_state(make_model(tied=False))
    scalars = [tensor for tensor in state.tensors if tensor.kind is Kind.SCALAR]
    assert len(scalars) == 4
    assert all(tensor.boxes(Layout(2, 3), rank, 6) for tensor in scalars for rank in range(6))


# --- who counts an element ---------------------------------------------------------------------------------------------


def counted_once(state: StateSpec, text: str) -> bool:
    """Whether the counted boxes of all ranks of a plan's units hold each element exactly once.

    Replicas count alike, but for the optimizer state that they share.
    """
    emus = make_emus(text)
    for tensor in state.tensors:
        count = np.zeros(tensor.shape, dtype=np.int64)
        shared = tensor.kind in OPTIMIZER_KINDS and emus[0].optimizer != UNSHARDED
        for emu in emus if shared else emus[:1]:
            for rank in range(emu.layout.size):
                for box in tensor.counted_boxes(emu.layout, rank, state.num_layers, emu.optimizer):
                    count[box.slices((0,) * count.ndim)] += 1
        if not (count == 1).all():
            return False
    return True


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"tp{s[0]}pp{s[1]}")
@pytest.mark.parametrize("tied", [True, False])
def test_counted_boxes_have_each_element_once(shape: tuple[int, int], tied: bool) -> None:
    """A global norm sums over the ranks of a unit, so each element is counted by one of its holders."""
    state = thin_state(make_model(tied=tied, num_heads=3, num_kv_heads=3))
    assert counted_once(state, f"tp{shape[0]} pp{shape[1]}")


@pytest.mark.parametrize("text", ["fsdp2", "tp2 fsdp3", "tp4 fsdp2", "pp2 fsdp2", "tp2 pp2 fsdp2", "fsdp8"])
def test_counted_boxes_of_fsdp_ranks_have_each_element_once(text: str) -> None:
    assert counted_once(thin_trained_state(make_model(tied=True, num_heads=4, num_kv_heads=2)), text)


@pytest.mark.parametrize("text", ["dp2 zero1", "tp2 dp3 zero1", "tp2 pp2 dp2 zero1", "fsdp2 dp2 zero1"])
def test_counted_boxes_of_zero1_replicas_have_each_element_once(text: str) -> None:
    assert counted_once(thin_trained_state(make_model(tied=True, num_heads=4, num_kv_heads=2)), text)


@pytest.mark.parametrize("text", ["pp2", "tp2", "tp2 pp3", "tp4", "tp4 fsdp2"])
def test_counted_boxes_have_each_element_of_a_fused_tensor_once(text: str) -> None:
    assert counted_once(fused_state(num_kv_heads=2), text)
