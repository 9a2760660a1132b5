"""How layers are split over a pipeline."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.cost.pipeline import balanced_split, even_split


@settings(deadline=None)
@given(st.integers(1, 96), st.integers(1, 32), st.floats(0, 20))
def test_a_balanced_split_has_every_layer_and_no_better_one_exists(layers: int, pp: int, head: float) -> None:
    split = balanced_split(layers, pp, head)
    assert sum(split) == layers
    assert len(split) == pp
    if pp > 1:
        pace = max(max(split[:-1]), split[-1] + head)
        for last in range(layers + 1):
            longest = -(-(layers - last) // (pp - 1))
            assert pace <= max(longest, last + head) + 1e-9


def test_a_head_worth_four_layers_takes_the_place_of_four() -> None:
    assert balanced_split(16, 4, 4.0) == (5, 5, 5, 1)


def test_a_head_worth_more_than_a_rank_stands_alone() -> None:
    assert balanced_split(32, 16, 2.2)[-1] == 0


def test_an_even_split_ignores_the_head() -> None:
    assert even_split(32, 4) == (8, 8, 8, 8)
    assert sum(even_split(30, 4)) == 30
