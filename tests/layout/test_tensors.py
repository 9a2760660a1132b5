"""Canonical tensors: what each rank holds, against index arrays cut by numpy (traps 2, 4, 5)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from nereus.errors import LayoutError, TensorRuleError
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import Layout
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
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


# --- the dense model, and what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_dense_state_has_as_many_elements_as_the_model_has_parameters(tied: bool) -> None:
    model = make_model(tied=tied)
    parameters = [tensor for tensor in make_state(model).tensors if tensor.kind is Kind.PARAMETER]
    assert sum(tensor.num_elements for tensor in parameters) == model.num_parameters


def test_trained_state_has_two_moments_for_each_parameter() -> None:
    kinds = Counter(tensor.kind for tensor in make_state(make_model(tied=True), optimizer=True).tensors)
    assert kinds[Kind.EXP_AVG] == kinds[Kind.EXP_AVG_SQ] == kinds[Kind.PARAMETER] > 0


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


def test_axis_that_is_not_carried_out_is_refused() -> None:
    with pytest.raises(LayoutError, match="ep axis"):
        cut((8, 2), Segment(8)).boxes(Layout(ep=2), 0, 1)


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
