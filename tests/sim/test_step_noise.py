"""Chance without state: the spreads that were measured, and the same again in any order."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest

from nereus.sim.noise import (
    SLOW_SPREAD,
    STEP_SPREAD,
    STRAGGLER_SHARE,
    STRAGGLER_STEPS,
    StepNoise,
    Stragglers,
    normal,
    uniform,
)

STEPS = 20_000


def logs(seed: int = 1, task: int = 0) -> list[float]:
    noise = StepNoise(seed)
    return [math.log(noise.factors(step, 4)[task]) for step in range(STEPS)]


def correlation(one: list[float], other: list[float]) -> float:
    a, b = fmean(one), fmean(other)
    return fmean((x - a) * (y - b) for x, y in zip(one, other, strict=True)) / pstdev(one) / pstdev(other)


def test_hashes_are_spread_as_their_names_say() -> None:
    flat, bell = [uniform(3, n) for n in range(STEPS)], [normal(3, n) for n in range(STEPS)]
    assert fmean(flat) == pytest.approx(0.5, abs=0.01)
    assert pstdev(flat) == pytest.approx(12**-0.5, rel=0.02)
    assert fmean(bell) == pytest.approx(0, abs=0.03)
    assert pstdev(bell) == pytest.approx(1, rel=0.02)
    assert fmean(abs(x) < 1 for x in bell) == pytest.approx(0.683, abs=0.02)


def test_steps_vary_as_much_as_was_measured_and_a_part_of_it_lasts() -> None:
    found, total = logs(), math.hypot(STEP_SPREAD, SLOW_SPREAD)
    assert pstdev(found) == pytest.approx(total, rel=0.1)
    for lag, expected in ((1, SLOW_SPREAD**2 / total**2), (16, 0.5 * SLOW_SPREAD**2 / total**2), (128, 0.0)):
        assert correlation(found[:-lag], found[lag:]) == pytest.approx(expected, abs=0.08)


def test_tasks_and_worlds_have_noise_of_their_own() -> None:
    assert abs(correlation(logs(), logs(task=1))) < 0.03
    assert abs(correlation(logs(), logs(seed=2))) < 0.03


def test_a_step_has_the_same_noise_in_any_order() -> None:
    forwards, backwards = StepNoise(7), StepNoise(7)
    assert [forwards.factors(step, 3) for step in range(90)] == [backwards.factors(step, 3) for step in range(89, -1, -1)][
        ::-1
    ]


def test_stragglers_are_as_many_as_were_measured_and_last_a_block() -> None:
    found = [Stragglers(5).at(block * STRAGGLER_STEPS, 64) for block in range(1000)]
    assert sum(map(len, found)) / 64_000 == pytest.approx(STRAGGLER_SHARE, rel=0.2)
    assert all(factor > 1 for slow in found for factor in slow.values())
    assert all(Stragglers(5).at(step, 64) == found[1] for step in range(STRAGGLER_STEPS, 2 * STRAGGLER_STEPS))
    assert not any(Stragglers(5, share=0.0).at(step, 64) for step in range(1000))
