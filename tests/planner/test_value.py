"""What a measurement is worth: against closed forms, and against a simulation of measuring and then choosing."""

from __future__ import annotations

from itertools import combinations
from math import log, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest

from nereus.cost.fit import NOISE
from nereus.planner.value import Belief, Floats, choose, normal_points, value


def believed(seconds: npt.ArrayLike, moves: npt.ArrayLike, own_error: npt.ArrayLike) -> Belief:
    """Items whose logs are linear in the unknowns."""
    mean, table = np.asarray(seconds, float), np.asarray(moves, float)
    own = np.broadcast_to(np.asarray(own_error, float), mean.shape)
    return Belief(mean, table, own, lambda shifts: mean * np.exp(shifts @ table.T))


def as_plans(seconds: Floats) -> Floats:
    """Each item is a plan of its own."""
    return seconds


@pytest.mark.parametrize("other", [9.0, 10.0, 12.0])
@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_value_of_one_measurement_is_an_option_to_take_the_other_plan(spread: float, other: float) -> None:
    """Black and Scholes: the mean of min(X, K), X lognormal of mean 10, is 10 Phi(-d1) + K Phi(d2)."""
    belief = believed([10.0, other], [[spread], [0.0]], 0.0)
    s = spread**2 / sqrt(spread**2 + NOISE**2)
    d1 = log(10.0 / other) / s + s / 2
    smaller = 10.0 * NormalDist().cdf(-d1) + other * NormalDist().cdf(d1 - s)
    assert value(belief, [0], as_plans) == pytest.approx(min(10.0, other) - smaller, rel=0.02, abs=3e-3)


def test_measuring_what_moves_all_plans_alike_is_worth_nothing() -> None:
    """A class that every plan has in the same share changes their times and not their order."""
    belief = believed([10.0, 10.5, 11.0], [[0.5], [0.5], [0.5]], 0.0)
    assert value(belief, [0], as_plans) == pytest.approx(0.0, abs=1e-9)
    assert choose(belief, [[0], [1], [2]], as_plans, 3) == []


def test_what_was_run_has_no_error_of_its_own_left() -> None:
    belief = believed([10.0, 10.0], [[0.0], [0.0]], [0.0, 0.1])
    assert value(belief, [0], as_plans) == pytest.approx(0.0, abs=1e-12)
    assert [probe for probe, _ in choose(belief, [[0], [1]], as_plans, 2)] == [1]


def slow_message(shifts: Floats) -> Floats:
    """9 s and a message of 1 s on average; a plan without it."""
    message = np.exp(2 * shifts)
    return np.hstack([9.0 + message / message.mean(), np.full_like(message, 8.9)])


def test_part_of_a_stage_cannot_make_it_faster_than_the_rest() -> None:
    """A message of 1 s in 10 s, however unsure, never brings it below the 8.9 s of the other plan; in logs it would."""
    belief = Belief(np.array([10.0, 8.9]), np.array([[0.5], [0.0]]), np.zeros(2), slow_message)
    assert 9.0 <= belief.outcomes([0])[0].min() < 9.5
    assert value(belief, [0], as_plans) == pytest.approx(0.0, abs=1e-9)


SECONDS = np.array([10.0, 10.3, 10.6, 11.5])
MOVES = np.array([[0.3, 0.0, 0.1], [0.3, 0.2, 0.0], [0.0, 0.05, 0.1], [0.0, 0.3, 0.3]])
OWN = np.array([0.05, 0.02, 0.0, 0.1])


def simulated(measured: tuple[int, ...], draws: int = 200_000) -> float:
    """Draw the truth, measure it with noise, choose what looks fastest by textbook regression, and look how it truly did."""
    random = np.random.default_rng(7)
    truth = random.standard_normal((draws, 3)) @ MOVES.T + random.standard_normal((draws, 4)) * OWN
    seen = truth[:, measured] + NOISE * random.standard_normal((draws, len(measured)))
    covariance = MOVES @ MOVES.T + np.diag(OWN**2)
    gain = covariance[:, measured] @ np.linalg.inv(covariance[np.ix_(measured, measured)] + NOISE**2 * np.eye(len(measured)))
    looks = SECONDS * np.exp(seen @ gain.T - np.diag(gain @ covariance[measured, :]) / 2)
    seconds = SECONDS * np.exp(truth - np.diag(covariance) / 2)
    chosen = seconds[np.arange(draws), looks.argmin(axis=1)]
    return float(seconds[:, SECONDS.argmin()].mean() - chosen.mean())


@pytest.mark.parametrize("measured", [*combinations(range(4), 1), *combinations(range(4), 2)])
def test_value_is_what_measuring_and_then_choosing_saves_on_average(measured: tuple[int, ...]) -> None:
    belief = believed(SECONDS, MOVES, OWN)
    assert value(belief, measured, as_plans) == pytest.approx(simulated(measured), rel=0.03, abs=0.01)


def test_probes_come_in_the_order_of_what_they_add_by_simulation() -> None:
    first = max(range(4), key=lambda item: simulated((item,)))
    second = max((item for item in range(4) if item != first), key=lambda item: simulated(tuple(sorted((first, item)))))
    found = choose(believed(SECONDS, MOVES, OWN), [[item] for item in range(4)], as_plans, 2)
    assert [probe for probe, _ in found] == [first, second]


def test_every_measurement_more_is_worth_something_or_nothing() -> None:
    belief = believed(SECONDS, MOVES, OWN)
    worth = [value(belief, list(range(count)), as_plans) for count in range(1, 5)]
    assert worth == sorted(worth)
    assert worth[0] > 0


@pytest.mark.parametrize("dimensions", [1, 3, 12])
def test_outcomes_are_standard_normal_and_always_the_same(dimensions: int) -> None:
    points = normal_points(dimensions)
    assert points.mean(axis=0) == pytest.approx(0.0, abs=1e-12)
    assert np.cov(points.T).reshape(dimensions, -1) == pytest.approx(np.eye(dimensions), abs=0.01)
    normal_points.cache_clear()
    assert (normal_points(dimensions) == points).all()
