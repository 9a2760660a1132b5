"""Horizons: the exponential moving average of intervals between crossings, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.policy.horizon import EMA_WEIGHT, FIRST_HORIZON_STEPS, Horizons, Signal


def after(*steps: int, signal: Signal = Signal.LENGTH, start: Horizons | None = None) -> Horizons:
    """Horizons after crossings of a signal at these steps."""
    horizons = start if start is not None else Horizons()
    for step in steps:
        horizons = horizons.crossed(signal, step)
    return horizons


def test_first_horizon_is_one_step() -> None:
    assert FIRST_HORIZON_STEPS == 1
    for signal in Signal:
        assert Horizons().steps([signal]) == 1
        assert after(9, signal=signal).steps([signal]) == 1, "one crossing is no interval"


def test_second_crossing_gives_the_first_interval() -> None:
    assert after(3, 13).steps([Signal.LENGTH]) == 10


def test_average_halves_the_past_with_each_interval() -> None:
    """Intervals 10, 20, 4: (10 + 20) / 2 = 15, (15 + 4) / 2 = 9.5."""
    assert EMA_WEIGHT == 0.5
    assert after(0, 10, 30).steps([Signal.LENGTH]) == 15
    assert after(0, 10, 30, 34).steps([Signal.LENGTH]) == 9.5


def test_two_crossings_in_one_step_are_one() -> None:
    assert after(0, 10, 10, 10, 30, 30) == after(0, 10, 30)


def test_first_crossing_at_step_zero_counts() -> None:
    assert after(0, 0, 6).steps([Signal.LENGTH]) == 6


def test_job_that_goes_back_counts_intervals_from_where_it_is() -> None:
    """At 0 and 10 an interval of 10; back from 12 to 8, so that the last crossing was 2 before: at 12 it is 6 ago."""
    back = after(0, 10).back(4)
    assert back.steps([Signal.LENGTH]) == 10
    assert after(12, start=back).steps([Signal.LENGTH]) == (10 + 6) / 2


def test_signals_keep_their_own_averages() -> None:
    horizons = after(0, 8, signal=Signal.POOL, start=after(0, 3))
    assert horizons.steps([Signal.LENGTH]) == 3
    assert horizons.steps([Signal.POOL]) == 8
    assert horizons.steps([Signal.MEMORY]) == 1


def test_smallest_of_several_horizons_counts() -> None:
    horizons = after(0, 8, signal=Signal.POOL, start=after(0, 3))
    assert horizons.steps([Signal.POOL, Signal.LENGTH]) == 3
    assert horizons.steps([Signal.LENGTH, Signal.POOL]) == 3


def test_signal_without_an_interval_counts_as_one_step_among_others() -> None:
    assert after(0, 8, signal=Signal.POOL).steps([Signal.POOL, Signal.MEMORY]) == 1


def test_horizon_of_no_signal_is_one_step() -> None:
    assert after(0, 8).steps([]) == 1


def test_crossing_leaves_the_horizons_that_it_started_from() -> None:
    start = after(0, 8)
    after(20, start=start)
    assert start == after(0, 8)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20))
def test_horizon_is_the_weighted_sum_of_all_intervals(intervals: list[int]) -> None:
    """The newest weighs a half, the one before a quarter, and so on; the first takes what is left."""
    steps = [0]
    for interval in intervals:
        steps.append(steps[-1] + interval)
    newest_first = list(reversed(intervals))
    weights = [0.5 ** (age + 1) for age in range(len(intervals))]
    weights[-1] *= 2
    expected = sum(w * interval for w, interval in zip(weights, newest_first, strict=True))
    assert after(*steps).steps([Signal.LENGTH]) == pytest.approx(expected)
    assert min(intervals) - 1e-9 <= after(*steps).steps([Signal.LENGTH]) <= max(intervals) + 1e-9
