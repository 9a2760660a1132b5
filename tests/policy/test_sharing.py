"""How devices are shared out, against every split there is; and what is asked for, against a formula."""

from __future__ import annotations

from itertools import product
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.policy.sharing import MOVE_COST, WORTH, Demand, shared_out, step_times, wanted, worth_of
from nereus.rl.describe import describe
from nereus.spec.loading import load_job
from tests.runtime.loop import QUICKSTART


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    least = draw(st.integers(1, 3))
    most = least + draw(st.integers(0, 4))
    seconds = {n: draw(st.floats(0.1, 100.0)) for n in range(least, most + 1) if n == least or draw(st.booleans())}
    return Demand(least=least, most=most, now=draw(st.integers(0, most)), seconds=seconds)


@given(st.lists(demands(), min_size=1, max_size=3), st.integers(1, 14))
def test_no_split_is_worth_more_and_none_as_good_takes_fewer(jobs: list[Demand], total: int) -> None:
    found = shared_out(jobs, total)
    splits = [split for split in product(*(range(job.least, job.most + 1) for job in jobs)) if sum(split) <= total]
    if not splits:
        assert found == tuple(min(job.now, job.most) for job in jobs)
        return
    worth = {split: sum(worth_of(job, count) for job, count in zip(jobs, split, strict=True)) for split in splits}
    best = max(worth.values())
    assert worth[found] == pytest.approx(best, abs=1e-7)
    assert sum(found) <= min(sum(split) for split, value in worth.items() if value >= best)


@given(st.lists(st.tuples(st.integers(1, 2), st.floats(0.2, 1.0)), min_size=1, max_size=3), st.integers(6, 12))
def test_where_gains_are_concave_each_device_goes_where_its_marginal_gain_is_largest(
    jobs: list[tuple[int, float]], total: int
) -> None:
    # L(n) = n ** -a: the gain a log(n / least) is concave.
    known = [
        Demand(least=least, most=total, now=0, seconds={n: n**-power for n in range(least, total + 1)})
        for least, power in jobs
    ]
    greedy = [job.least for job in known]
    for _ in range(total - sum(greedy)):
        at = max(range(len(known)), key=lambda j: known[j].marginal(greedy[j]))
        greedy[at] += 1
    gain = sum(job.gain(count) for job, count in zip(known, greedy, strict=True))
    found = sum(job.gain(count) for job, count in zip(known, shared_out(known, total), strict=True))
    assert found == pytest.approx(gain, abs=1e-7)


def test_gains_count_alike_for_slow_and_fast_jobs() -> None:
    fast, slow = ({n: scale / n for n in range(1, 9)} for scale in (1.0, 600.0))
    assert shared_out([Demand(least=1, most=8, now=0, seconds=s) for s in (fast, slow)], 8) == (4, 4)


def test_devices_that_shorten_nothing_stay_free() -> None:
    job = Demand(least=2, most=8, now=0, seconds={2: 2.0, 4: 1.0, 8: 1.0})
    assert shared_out([job], 8) == (4,)


def test_a_gain_that_is_smaller_than_the_cost_of_moving_moves_nothing() -> None:
    def job(now: int, better: float) -> Demand:
        return Demand(least=1, most=2, now=now, seconds={1: 1.0, 2: 1.0 / better})

    small, large = 1.0 + MOVE_COST / 2, 1.0 + 4 * MOVE_COST
    assert shared_out([job(2, 1.001), job(1, small)], 3) == (2, 1)
    assert shared_out([job(2, 1.001), job(1, large)], 3) == (1, 2)


def test_marginal_gain_looks_past_numbers_that_bring_nothing() -> None:
    job = Demand(least=1, most=4, now=1, seconds={1: 4.0, 4: 1.0})
    assert job.marginal(1) == pytest.approx(log(4.0) / 3)
    assert job.marginal(4) == 0.0


@given(st.floats(0.05, 2.0))
def test_asked_for_is_what_brings_its_share_of_what_the_first_ones_bring(power: float) -> None:
    # Speed n ** a: going from n to n + 1 brings ((1 + 1/n) ** a - 1) * n of the average.
    job = Demand(least=1, most=12, now=1, seconds={n: n**-power for n in range(1, 13)})
    count = wanted(job)
    assert all(((1 + 1 / n) ** power - 1) * n >= WORTH for n in range(1, count))
    if count < 12:
        assert ((1 + 1 / count) ** power - 1) * count < WORTH


def test_step_times_are_those_of_the_best_plan_for_each_number_of_devices() -> None:
    config = describe(load_job(QUICKSTART))
    lengths = config.prior.lengths(6.0, range(1, 2))
    found = step_times(config.prior, tuple(range(8)), config.node_of, lengths)
    assert sorted(found) == list(range(1, 9))
    assert all(later <= earlier + 1e-12 for earlier, later in zip(found.values(), list(found.values())[1:], strict=False))
