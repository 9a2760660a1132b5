"""Canonical tensors: what each rank holds, against index arrays cut by numpy (traps 1, 2, 4, 5, 6, 7, 10)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nereus.errors import LayoutError, TensorRuleError
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import Layout
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment, pipeline_layers
from tests.builders import fused_state, make_emu, make_model, make_state, rank_masks, thin_state

SHAPES = [(tp, pp) for tp in range(1, 9) for pp in range(1, 7)]


def cut(shape: tuple[int, ...], *segments: Segment, axis: int = 0) -> CanonicalTensor:
    return CanonicalTensor("w", Kind.PARAMETER, shape, "float32", Place.FIRST, axis=axis, segments=segments)


def held(tensor: CanonicalTensor, tp: int, rank: int) -> NDArray[np.int64]:
    """The elements of a tensor that a TP rank holds, its boxes one after the other along the cut axis."""
    values = np.arange(tensor.num_elements).reshape(tensor.shape)
    boxes = tensor.boxes(Layout(tp), rank, num_layers=1)
    axis = tensor.axis or 0
    empty = values.take([], axis=axis)
    return np.concatenate([empty, *(values[box.slices((0,) * values.ndim)] for box in boxes)], axis=axis)


# --- Segment.span ------------------------------------------------------------------------------------------------------

grained = st.tuples(st.integers(1, 60), st.integers(1, 5), st.integers(1, 16))


@given(grained)
def test_segment_shares_tile_it_in_order(case: tuple[int, int, int]) -> None:
    grains, grain, parts = case
    spans = [Segment(grains * grain, grain).span(min(parts, grains), index) for index in range(min(parts, grains))]
    assert [e for low, high in spans for e in range(low, high)] == list(range(grains * grain))


@given(grained)
def test_segment_shares_differ_by_one_grain_at_most(case: tuple[int, int, int]) -> None:
    grains, grain, parts = case
    spans = [Segment(grains * grain, grain).span(min(parts, grains), index) for index in range(min(parts, grains))]
    sizes = {high - low for low, high in spans}
    assert max(sizes) - min(sizes) <= grain


@given(grained)
def test_segment_never_cuts_through_a_grain(case: tuple[int, int, int]) -> None:
    grains, grain, parts = case
    spans = [Segment(grains * grain, grain).span(parts, index) for index in range(parts)]
    assert all(low % grain == 0 and high % grain == 0 for low, high in spans)


@given(grained)
def test_segment_with_fewer_grains_than_parts_gives_one_to_each(case: tuple[int, int, int]) -> None:
    grains, grain, extra = case
    spans = [Segment(grains * grain, grain).span(grains + extra, index) for index in range(grains + extra)]
    assert all(high - low == grain for low, high in spans)


@given(grained)
def test_segment_with_fewer_grains_than_parts_loses_none_and_shares_evenly(case: tuple[int, int, int]) -> None:
    grains, grain, extra = case
    shares = Counter(Segment(grains * grain, grain).span(grains + extra, i)[0] // grain for i in range(grains + extra))
    assert sorted(shares) == list(range(grains))
    assert max(shares.values()) - min(shares.values()) <= 1


@given(grained, st.integers(1, 6))
def test_segment_boundaries_nest_for_divisors(case: tuple[int, int, int], factor: int) -> None:
    grains, grain, parts = case
    if grains < parts * factor:
        grains += parts * factor
    segment = Segment(grains * grain, grain)
    coarse = {bound for index in range(parts) for bound in segment.span(parts, index)}
    fine = {bound for index in range(parts * factor) for bound in segment.span(parts * factor, index)}
    assert coarse <= fine


@pytest.mark.parametrize("tp", range(1, 9))
def test_segment_of_an_odd_vocabulary_has_no_padding(tp: int) -> None:
    spans = [Segment(4999).span(tp, index) for index in range(tp)]
    assert spans[-1][1] == 4999
    assert sum(high - low for low, high in spans) == 4999


def test_segment_without_elements_is_empty_everywhere() -> None:
    assert [Segment(0).span(3, index) for index in range(3)] == [(0, 0)] * 3


@pytest.mark.parametrize(("length", "grain"), [(7, 2), (4, 0), (4, -2)])
def test_segment_refuses_a_grain_that_does_not_fit(length: int, grain: int) -> None:
    with pytest.raises(TensorRuleError, match=str(length)):
        Segment(length, grain)


# --- boxes against numpy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tensor_cut_on_rows_is_what_numpy_splits(tp: int) -> None:
    values = np.arange(40).reshape(8, 5)
    for rank, expected in enumerate(np.split(values, tp, axis=0)):
        np.testing.assert_array_equal(held(cut((8, 5), Segment(8)), tp, rank), expected)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tensor_cut_on_columns_is_what_numpy_splits(tp: int) -> None:
    values = np.arange(40).reshape(5, 8)
    for rank, expected in enumerate(np.split(values, tp, axis=1)):
        np.testing.assert_array_equal(held(cut((5, 8), Segment(8), axis=1), tp, rank), expected)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_fused_gate_and_up_are_cut_each_on_its_own(tp: int) -> None:
    gate_up = cut((16, 3), Segment(8), Segment(8))
    gate, up = np.split(np.arange(48).reshape(16, 3), 2)
    for rank in range(tp):
        expected = np.concatenate([np.split(gate, tp)[rank], np.split(up, tp)[rank]])
        np.testing.assert_array_equal(held(gate_up, tp, rank), expected)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_fused_qkv_repeats_kv_heads_under_a_larger_tp(tp: int) -> None:
    heads, kv_heads, dim = 8, 2, 3
    qkv = cut(
        ((heads + 2 * kv_heads) * dim, 2),
        Segment(heads * dim, dim),
        Segment(kv_heads * dim, dim),
        Segment(kv_heads * dim, dim),
    )
    q, k, v = np.split(np.arange(qkv.num_elements).reshape(qkv.shape), [heads * dim, (heads + kv_heads) * dim])

    def of_rank(heads_of: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
        if kv_heads >= tp:
            return np.split(heads_of, tp)[rank]
        return np.split(heads_of, kv_heads)[rank // (tp // kv_heads)]

    for rank in range(tp):
        expected = np.concatenate([np.split(q, tp)[rank], of_rank(k, rank), of_rank(v, rank)])
        np.testing.assert_array_equal(held(qkv, tp, rank), expected)


@pytest.mark.parametrize(("kv_heads", "tp"), [(2, 1), (2, 2), (2, 4), (2, 8), (3, 1), (3, 3), (3, 6), (4, 2), (4, 8)])
def test_rank_holds_the_kv_heads_that_its_query_heads_attend_to(kv_heads: int, tp: int) -> None:
    heads = 24
    for rank in range(tp):
        queries = range(*Segment(heads).span(tp, rank))
        assert {q // (heads // kv_heads) for q in queries} == set(range(*Segment(kv_heads).span(tp, rank)))


@pytest.mark.parametrize("tp", range(1, 9))
@pytest.mark.parametrize("kv_heads", [2, 3])
def test_kv_heads_all_have_a_holder_and_are_whole(kv_heads: int, tp: int) -> None:
    tensor = cut((kv_heads * 4, 2), Segment(kv_heads * 4, 4))
    rows = [held(tensor, tp, rank)[:, 0] // 2 for rank in range(tp)]
    assert {int(row) for part in rows for row in part} == set(range(kv_heads * 4))
    assert all(len(part) > 0 and len(part) % 4 == 0 for part in rows)


def test_tensor_that_is_not_cut_is_whole_on_every_tp_rank() -> None:
    norm = CanonicalTensor("norm", Kind.PARAMETER, (5,), "float32", Place.LAST)
    assert [norm.boxes(Layout(3), rank, 1)[0].shape for rank in range(3)] == [(5,)] * 3


def test_rank_without_elements_has_no_box() -> None:
    tensor = cut((0, 4), Segment(0))
    assert [tensor.boxes(Layout(3), rank, 1) for rank in range(3)] == [()] * 3


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(thin_state(make_model(tied=True, num_heads=3, num_kv_heads=3)), id="tied"),
        pytest.param(make_state(make_model(tied=False)), id="untied"),
        pytest.param(fused_state(), id="fused"),
        pytest.param(fused_state(num_heads=6, num_kv_heads=3), id="fused-3-kv"),
    ],
)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"tp{s[0]}pp{s[1]}")
def test_shards_are_the_elements_of_an_independent_cut(state: StateSpec, shape: tuple[int, int]) -> None:
    emu = make_emu(f"tp{shape[0]} pp{shape[1]}")
    shards = {endpoint: state.shards(emu.layout, rank) for rank, endpoint in enumerate(emu.endpoints)}
    for endpoint, tensor, expected in rank_masks(state, emu):
        count = np.zeros(tensor.shape, dtype=np.int64)
        for box in shards[endpoint].get(tensor, ()):
            count[box.slices((0,) * count.ndim)] += 1
        np.testing.assert_array_equal(count, expected)


# --- the pipeline ------------------------------------------------------------------------------------------------------


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


# --- the dense model, and what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_dense_state_has_as_many_elements_as_the_model_has_parameters(tied: bool) -> None:
    model = make_model(tied=tied)
    parameters = [tensor for tensor in make_state(model).tensors if tensor.kind is Kind.PARAMETER]
    assert sum(tensor.num_elements for tensor in parameters) == model.num_parameters


def test_trained_state_has_two_moments_for_each_parameter() -> None:
    kinds = Counter(tensor.kind for tensor in make_state(make_model(tied=True), optimizer=True).tensors)
    assert kinds[Kind.EXP_AVG] == kinds[Kind.EXP_AVG_SQ] == kinds[Kind.PARAMETER] > 0


def test_shard_bytes_count_held_elements_by_their_width() -> None:
    state, emu = thin_state(make_model(tied=True)), make_emu("tp2 pp3")
    expected = Counter[str]()
    for endpoint, tensor, mask in rank_masks(state, emu):
        expected[endpoint] += int(mask.sum()) * (8 if tensor.dtype == "int64" else 4)
    assert [state.shard_bytes(emu.layout, rank) for rank in range(6)] == [expected[e] for e in emu.endpoints]


def test_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(TensorRuleError, match=r"w\.q.*float8_e4m3"):
        CanonicalTensor("w.q", Kind.PARAMETER, (4,), "float8_e4m3", Place.FIRST)


def test_segments_that_do_not_add_up_are_refused_by_name() -> None:
    with pytest.raises(TensorRuleError, match="tensor w"):
        cut((8, 2), Segment(4), Segment(3))


@pytest.mark.parametrize(("place", "layer"), [(Place.LAYER, None), (Place.FIRST, 0)])
def test_place_that_contradicts_the_layer_is_refused(place: Place, layer: int | None) -> None:
    with pytest.raises(TensorRuleError, match="tensor w"):
        CanonicalTensor("w", Kind.PARAMETER, (4,), "float32", place, layer)


@pytest.mark.parametrize("layout", [Layout(fsdp=2), Layout(ep=2)])
def test_axes_that_are_not_carried_out_are_refused(layout: Layout) -> None:
    with pytest.raises(LayoutError, match="fsdp and ep"):
        cut((8, 2), Segment(8)).boxes(layout, 0, 1)


def test_layer_beyond_the_model_is_refused_by_name() -> None:
    stray = CanonicalTensor("model.layers.6.w", Kind.PARAMETER, (4,), "float32", Place.LAYER, 6)
    with pytest.raises(TensorRuleError, match=r"model\.layers\.6\.w"):
        StateSpec((stray,), num_layers=6).shards(Layout(), 0)


def test_negative_axis_is_refused_or_counted_from_the_end() -> None:
    try:
        tensor = cut((3, 8), Segment(8), axis=-1)
    except TensorRuleError:
        return
    assert tensor.boxes(Layout(2), 1, 1)[0].shape == (3, 4)


def test_axis_outside_the_shape_is_refused_by_name() -> None:
    with pytest.raises(TensorRuleError, match="tensor w"):
        cut((8,), Segment(8), axis=1)


def test_state_with_one_name_twice_is_refused() -> None:
    with pytest.raises(TensorRuleError, match="tensor w"):
        StateSpec((cut((8, 2), Segment(8)), cut((4, 2), Segment(4))), num_layers=1)


# --- who counts an element ---------------------------------------------------------------------------------------------


def counted_once(state: StateSpec, shape: tuple[int, int]) -> bool:
    """Whether the counted boxes of all ranks hold each element exactly once."""
    layout = Layout(*shape)
    for tensor in state.tensors:
        count = np.zeros(tensor.shape, dtype=np.int64)
        for rank in range(layout.size):
            for box in tensor.counted_boxes(layout, rank, state.num_layers):
                count[box.slices((0,) * count.ndim)] += 1
        if not (count == 1).all():
            return False
    return True


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"tp{s[0]}pp{s[1]}")
@pytest.mark.parametrize("tied", [True, False])
def test_counted_boxes_have_each_element_once(shape: tuple[int, int], tied: bool) -> None:
    """A global norm sums over the ranks of a unit, so each element is counted by one of its holders."""
    assert counted_once(thin_state(make_model(tied=tied, num_heads=3, num_kv_heads=3)), shape)


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2, 3), (4, 1)])
def test_counted_boxes_have_each_element_of_a_fused_tensor_once(shape: tuple[int, int]) -> None:
    assert counted_once(fused_state(num_kv_heads=2), shape)
