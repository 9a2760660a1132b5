"""Boxes against boolean masks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nereus.layout.box import Box

SHAPES = ((7,), (5, 6), (4, 3, 5))


@st.composite
def box_pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, Box]:
    shape = draw(st.sampled_from(SHAPES))

    def box() -> Box:
        low = [draw(st.integers(0, extent - 1)) for extent in shape]
        high = [draw(st.integers(start + 1, extent)) for start, extent in zip(low, shape, strict=True)]
        return Box(tuple(low), tuple(high))

    return shape, box(), box()


def mask(shape: tuple[int, ...], *boxes: Box) -> NDArray[np.int64]:
    """How often each element is in one of the boxes."""
    count = np.zeros(shape, dtype=np.int64)
    for box in boxes:
        count[tuple(slice(low, high) for low, high in zip(box.low, box.high, strict=True))] += 1
    return count


@given(box_pairs())
def test_intersection_has_exactly_the_common_elements(case: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, a, b = case
    common = a.intersect(b)
    expected = mask(shape, a) * mask(shape, b)
    np.testing.assert_array_equal(mask(shape, *([] if common is None else [common])), expected)


@given(box_pairs())
def test_intersection_is_none_only_when_nothing_is_common(case: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, a, b = case
    assert (a.intersect(b) is None) == (not (mask(shape, a) * mask(shape, b)).any())


@given(box_pairs())
def test_intersection_is_symmetric(case: tuple[tuple[int, ...], Box, Box]) -> None:
    _, a, b = case
    assert a.intersect(b) == b.intersect(a)


@given(box_pairs())
def test_difference_covers_the_rest_once(case: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, a, b = case
    np.testing.assert_array_equal(mask(shape, *a.subtract(b)), mask(shape, a) * (1 - mask(shape, b)))


@given(box_pairs())
def test_difference_has_no_empty_boxes(case: tuple[tuple[int, ...], Box, Box]) -> None:
    _, a, b = case
    assert all(box.volume > 0 for box in a.subtract(b))


@given(box_pairs())
def test_containment_means_that_nothing_is_left(case: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, a, b = case
    assert a.contains(b) == (mask(shape, b) <= mask(shape, a)).all()


@given(box_pairs())
def test_volume_counts_elements(case: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, a, _ = case
    assert a.volume == mask(shape, a).sum()


@given(box_pairs())
def test_slices_index_an_array_that_starts_at_the_origin(case: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, a, b = case
    values = np.arange(np.prod(shape)).reshape(shape)
    common = a.intersect(b)
    if common is not None:
        shard = values[a.slices((0,) * len(shape))]
        np.testing.assert_array_equal(shard[common.slices(a.low)], values[common.slices((0,) * len(shape))])


def test_scalar_is_one_element() -> None:
    assert Box.whole(()).volume == 1


def test_scalar_meets_itself() -> None:
    assert Box.whole(()).intersect(Box.whole(())) == Box.whole(())


def test_scalar_minus_itself_is_nothing() -> None:
    assert Box.whole(()).subtract(Box.whole(())) == []


def test_scalar_slices_index_a_scalar_array() -> None:
    assert np.array(3)[Box.whole(()).slices(())] == 3


def test_touching_boxes_have_nothing_in_common() -> None:
    assert Box((0, 0), (2, 4)).intersect(Box((2, 0), (4, 4))) is None


def test_box_without_extent_has_no_volume() -> None:
    assert Box((3, 0), (3, 4)).volume == 0


def test_span_along_an_axis_is_replaced() -> None:
    assert Box((0, 0), (4, 6)).along(1, 2, 3) == Box((0, 2), (4, 3))
