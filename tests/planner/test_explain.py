"""Why not another plan: the reasons name what is in the way."""

from __future__ import annotations

import pytest

from nereus.planner.explain import Why, why_not_faster, why_slower
from nereus.planner.problem import Holder, Pool, Problem, Rows, Stage
from nereus.planner.solve import solve
from tests.planner.instances import random_problem


def make_problem(capacity: float, devices: int, *, active: float = 1.0) -> Problem:
    """Two scorers: 8 s on one device or 2 s on four, which need `active` bytes more than one byte."""
    rows = Rows.of([[8.0, 2.0]], [1, 4], [1.0, 1.0], [1.0, active], 1, [0, 1])
    holders = tuple(Holder(name, (Stage.INFERENCE,), rows) for name in ("reference", "reward"))
    return Problem(holders, Pool.of([devices], capacity))


def reasons(problem: Problem) -> list[Why]:
    (best, *_), _ = solve(problem)
    return [reason.code for reason in why_not_faster(problem, best)]


def test_memory_is_the_reason_where_more_of_it_would_do() -> None:
    problem = make_problem(5.0, 8, active=9.0)
    found, _ = solve(problem)
    assert found[0].step_seconds == 8.0
    assert reasons(problem) == []  # one scorer alone would not help: the other takes 8 s anyway
    mixed = make_problem(5.0, 8, active=9.0)
    (reference, reward) = mixed.holders
    short = Holder("reward", reward.stages, Rows.of([[1.0]], [1], [1.0], [1.0], 1, [0]))
    assert reasons(Problem((reference, short), mixed.pool)) == [Why.MEMORY]


def test_budget_is_the_reason_where_more_devices_would_do() -> None:
    reference, reward = make_problem(10.0, 4).holders
    long = Holder("reward", reward.stages, Rows.of([[7.0]], [1], [1.0], [1.0], 1, [0]))
    problem = Problem((reference, long), Pool.of([4], 10.0))
    (best,), _ = solve(problem)
    assert best.step_seconds == 8.0
    (reason,) = why_not_faster(problem, best)
    assert reason.code is Why.BUDGET
    assert "4 devices" in reason.sentence
    assert reason.seconds == pytest.approx(1.0)


def test_runner_up_is_explained_by_the_seconds_that_it_loses() -> None:
    problem = make_problem(10.0, 8)
    (best, second), _ = solve(problem, 2)
    reason = why_slower(problem, best, second)
    assert reason.code is Why.LATENCY
    assert reason.seconds == second.step_seconds - best.step_seconds > 0
    assert "slower" in reason.sentence


def test_reasons_of_random_problems_hold_when_their_obstacle_is_removed() -> None:
    """Where memory is in the way, unlimited memory gives a faster plan."""
    explained = 0
    for seed in range(100):
        problem = random_problem(seed)
        found, _ = solve(problem)
        for reason in why_not_faster(problem, found[0]) if found else ():
            unlimited = Pool(problem.pool.nodes, (2.0**60,) * len(problem.pool.capacity_bytes))
            freed = Problem(problem.holders, unlimited, problem.edges, problem.asynchronous, problem.overlaps)
            if reason.code is Why.MEMORY:
                assert solve(freed)[0][0].step_seconds < found[0].step_seconds
                explained += 1
    assert explained > 3
