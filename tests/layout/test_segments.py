"""Segments: how a run of elements is shared out, in whole grains and without padding (traps 2, 5, 6)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.errors import TensorRuleError
from nereus.layout.tensors import Segment

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
