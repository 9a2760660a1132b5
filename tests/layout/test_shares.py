"""Shares of rows: what the fsdp axis and the replicas of ZeRO-1 leave of a TP rank's part (traps 1, 2, 3)."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.layout.catalog import StateSpec
from nereus.layout.layout import UNSHARDED, Layout, OptimizerShard
from nereus.layout.tensors import OPTIMIZER_KINDS, CanonicalTensor, Kind, Place, Segment
from tests.builders import Values, fused_state, make_emus, make_model, rank_masks, thin_state
from tests.layout.models import thin_trained_state

SHARED = [
    *("fsdp2", "fsdp3", "fsdp8", "tp2 fsdp2", "tp3 fsdp2", "pp2 fsdp3", "tp2 pp2 fsdp2", "tp2 fsdp3"),
    *("dp2 zero1", "dp3 zero1", "dp8 zero1", "tp2 dp3 zero1", "pp3 dp2 zero1", "tp2 pp2 dp2 zero1"),
    *("fsdp2 dp3 zero1", "tp2 fsdp2 dp2 zero1", "pp2 fsdp2 dp2 zero1", "fsdp2 dp2", "tp4 pp2 dp1 zero1"),
]
ROWS = CanonicalTensor("rows", Kind.PARAMETER, (7, 2), "float32", Place.FIRST, axis=0, segments=(Segment(7),))
GATE_UP = CanonicalTensor("gate_up", Kind.PARAMETER, (10, 1), "float32", Place.FIRST, axis=0, segments=(Segment(5),) * 2)
COLUMNS = CanonicalTensor("columns", Kind.PARAMETER, (6, 4), "float32", Place.FIRST, axis=1, segments=(Segment(4),))


def rows_held(tensor: CanonicalTensor, layout: Layout, rank: int, optimizer: OptimizerShard = UNSHARDED) -> list[int]:
    return [row for box in tensor.boxes(layout, rank, 1, optimizer) for row in range(box.low[0], box.high[0])]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(thin_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53)), id="tied"),
        pytest.param(thin_trained_state(make_model(tied=False)), id="trained"),
        pytest.param(fused_state(num_heads=6, num_kv_heads=3), id="fused-3-kv"),
    ],
)
@pytest.mark.parametrize("text", SHARED)
def test_shards_are_the_elements_of_an_independent_cut(state: StateSpec, text: str) -> None:
    for emu in make_emus(text):
        shards = {e: state.shards(emu.layout, rank, emu.optimizer) for rank, e in enumerate(emu.endpoints)}
        for endpoint, tensor, expected in rank_masks(state, emu):
            count = np.zeros(tensor.shape, dtype=np.int64)
            for box in shards[endpoint].get(tensor, ()):
                count[box.slices((0,) * count.ndim)] += 1
            np.testing.assert_array_equal(count, expected)


# --- the fsdp axis -----------------------------------------------------------------------------------------------------


def test_rows_are_shared_out_by_whole_division() -> None:
    assert [rows_held(ROWS, Layout(fsdp=3), rank) for rank in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]


def test_segments_are_shared_out_each_on_its_own() -> None:
    """Trap 4: a fused gate/up that is cut as if plain would give one rank the gate, the other the up projection."""
    assert [rows_held(GATE_UP, Layout(fsdp=2), rank) for rank in range(2)] == [[0, 1, 5, 6], [2, 3, 4, 7, 8, 9]]


def test_rows_that_tensor_parallelism_has_cut_are_cut_further() -> None:
    held = [rows_held(ROWS, Layout(2, 1, 2), rank) for rank in range(4)]
    assert held == [[0], [3, 4], [1, 2], [5, 6]]


def test_row_parallel_tensor_is_cut_on_both_axes() -> None:
    boxes = [COLUMNS.boxes(Layout(2, 1, 3), rank, 1) for rank in range(6)]
    assert [(box.low, box.shape) for (box,) in boxes] == [((2 * f, 2 * t), (2, 2)) for f in range(3) for t in range(2)]


def test_tensor_that_is_whole_under_tp_is_cut_by_fsdp() -> None:
    norm = CanonicalTensor("norm", Kind.PARAMETER, (5,), "float32", Place.FIRST)
    assert [rows_held(norm, Layout(2, 1, 2), rank) for rank in range(4)] == [[0, 1], [0, 1], [2, 3, 4], [2, 3, 4]]


def test_rank_without_a_row_has_no_box() -> None:
    """Trap 2: an empty shard is legal."""
    held = [rows_held(ROWS, Layout(fsdp=9), rank) for rank in range(9)]
    assert sorted(row for rows in held for row in rows) == list(range(7))
    assert [] in held


@pytest.mark.parametrize("layout", [Layout(fsdp=3), Layout(2, 1, 4)])
def test_counters_are_whole_on_every_rank(layout: Layout) -> None:
    counter = CanonicalTensor("step", Kind.SCALAR, (), "int64", Place.EVERYWHERE)
    table = CanonicalTensor("lr", Kind.SCALAR, (4,), "float32", Place.EVERYWHERE)
    assert [counter.boxes(layout, rank, 1)[0].volume for rank in range(layout.size)] == [1] * layout.size
    assert [table.boxes(layout, rank, 1)[0].volume for rank in range(layout.size)] == [4] * layout.size


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4))
def test_boundaries_of_shares_nest_for_divisors(rows: int, fsdp: int, factor: int) -> None:
    tensor = CanonicalTensor("w", Kind.PARAMETER, (rows, 2), "float32", Place.FIRST)
    fine = [rows_held(tensor, Layout(fsdp=fsdp * factor), rank) for rank in range(fsdp * factor)]
    coarse = [rows_held(tensor, Layout(fsdp=fsdp), rank) for rank in range(fsdp)]
    joined = [list(chain(*fine[index * factor : (index + 1) * factor])) for index in range(fsdp)]
    assert joined == coarse


@given(st.integers(1, 60), st.integers(1, 9))
def test_shares_differ_by_one_row_at_most(rows: int, fsdp: int) -> None:
    tensor = CanonicalTensor("w", Kind.PARAMETER, (rows, 2), "float32", Place.FIRST)
    sizes = [len(rows_held(tensor, Layout(fsdp=fsdp), rank)) for rank in range(fsdp)]
    assert max(sizes) - min(sizes) <= 1


# --- ZeRO-1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.SCALAR])
def test_only_optimizer_state_is_shared_by_replicas(kind: Kind) -> None:
    tensor = ROWS.as_kind(kind, "float32")
    held = [rows_held(tensor, Layout(), 0, OptimizerShard(part, 2)) for part in range(2)]
    assert held == ([[0, 1, 2], [3, 4, 5, 6]] if kind in OPTIMIZER_KINDS else [list(range(7))] * 2)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 7, 8])
def test_replicas_hold_all_optimizer_state_once(parts: int) -> None:
    """Trap 3: any number of replicas; those without a row hold nothing."""
    moment = GATE_UP.as_kind(Kind.EXP_AVG, "float32")
    held = [rows_held(moment, Layout(), 0, OptimizerShard(part, parts)) for part in range(parts)]
    assert sorted(row for rows in held for row in rows) == list(range(10))


def test_replicas_share_what_an_fsdp_rank_holds() -> None:
    moment = ROWS.as_kind(Kind.MASTER, "float32")
    held = [rows_held(moment, Layout(fsdp=2), rank, OptimizerShard(part, 2)) for part in range(2) for rank in range(2)]
    assert held == [[0], [3, 4], [1, 2], [5, 6]]


def values_of(tensor: CanonicalTensor, values: Values, layout: Layout, part: int, parts: int) -> list[Values]:
    shard = OptimizerShard(part, parts)
    return [values[b.slices((0, 0))] for rank in range(layout.size) for b in tensor.boxes(layout, rank, 1, shard)]


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_shared_moments_are_what_numpy_cuts(parts: int) -> None:
    """Twelve rows over two TP ranks, those of each over the replicas."""
    tensor = CanonicalTensor("m", Kind.EXP_AVG, (24, 2), "float32", Place.FIRST, axis=0, segments=(Segment(24),))
    values = np.arange(48).reshape(24, 2)
    for part in range(parts):
        expected = [np.split(half, parts)[part] for half in np.split(values, 2)]
        for found, wanted in zip(values_of(tensor, values, Layout(2), part, parts), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
