"""Layouts: the order of ranks and the paper's T_sub."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.errors import LayoutError
from nereus.layout.layout import Layout

layouts = st.builds(Layout, *(st.integers(1, 4) for _ in range(4)))


@given(layouts)
def test_layout_numbers_ranks_with_tp_fastest(layout: Layout) -> None:
    ranks = np.arange(layout.size).reshape(layout.pp, layout.ep, layout.fsdp, layout.tp)
    found = {rank: tuple(layout.coordinate(rank)) for rank in range(layout.size)}
    assert found == {int(rank): position for position, rank in np.ndenumerate(ranks)}


@given(layouts)
def test_layout_rank_is_the_inverse_of_its_coordinate(layout: Layout) -> None:
    for rank in range(layout.size):
        at = layout.coordinate(rank)
        assert layout.rank(pp=at.pp, ep=at.ep, fsdp=at.fsdp, tp=at.tp) == rank


@pytest.mark.parametrize("rank", [-1, 4])
def test_layout_refuses_a_rank_outside(rank: int) -> None:
    with pytest.raises(LayoutError, match=f"rank {rank}"):
        Layout(2, 2).coordinate(rank)


@pytest.mark.parametrize("axis", ["tp", "pp", "fsdp", "ep"])
def test_layout_refuses_a_degree_of_zero_by_name(axis: str) -> None:
    with pytest.raises(LayoutError, match=f"{axis}: 0"):
        Layout(**{axis: 0})


def splits_into(tp: int, pp: int) -> set[tuple[int, int]]:
    """The layouts into which (tp, pp) can be split by whole factors."""
    return {(t, p) for t, p in product(range(1, tp + 1), range(1, pp + 1)) if tp % t == 0 and pp % p == 0}


@given(*(st.integers(1, 12) for _ in range(4)))
def test_common_layout_is_the_largest_into_which_both_split(tp: int, pp: int, other_tp: int, other_pp: int) -> None:
    both = splits_into(tp, pp) & splits_into(other_tp, other_pp)
    largest = max(both, key=lambda layout: layout[0] * layout[1])
    common = Layout(tp, pp).common(Layout(other_tp, other_pp))
    assert (common.tp, common.pp) == largest


def test_common_layout_of_the_papers_reward_inference() -> None:
    assert Layout(4, 8).common(Layout(8, 2)) == Layout(4, 2)


@given(*(st.integers(1, 8) for _ in range(4)))
def test_layout_divides_what_can_be_split_into_it(tp: int, pp: int, other_tp: int, other_pp: int) -> None:
    assert Layout(tp, pp).divides(Layout(other_tp, other_pp)) == ((tp, pp) in splits_into(other_tp, other_pp))


def test_layout_reads_as_its_degrees() -> None:
    assert (str(Layout(4, 2)), str(Layout(4, 2, fsdp=2))) == ("tp4 pp2", "tp4 pp2 fsdp2")
