"""The exact plan search against brute force on hundreds of random problems, the one best plan and the five best."""

from __future__ import annotations

import pytest

from nereus.planner import solve as solving
from nereus.planner.solve import solve
from tests.planner.checking import assert_holds
from tests.planner.exhaustive import brute_force_plans
from tests.planner.instances import random_problem, with_memory

CHUNKS = [(1, first) for first in range(0, 240, 30)] + [(5, first) for first in range(240, 330, 30)]


@pytest.mark.parametrize(("top", "first"), CHUNKS)
def test_search_equals_brute_force(top: int, first: int) -> None:
    for seed in range(first, first + 30):
        problem = random_problem(seed)
        found, report = solve(problem, top)
        assert [s.step_seconds for s in found] == [seconds for seconds, _ in brute_force_plans(problem, top)], seed
        assert report.relaxed_not_placed == 0
        for solution in found:
            assert_holds(problem, solution)


def test_steps_for_large_tables_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coarse grid first, and rows that are bounded beside generation: here for tables of any size."""
    monkeypatch.setattr(solving, "COARSE_ROWS", 0)
    monkeypatch.setattr(solving, "BESIDE_ROWS", 0)
    problems = [problem for problem in map(random_problem, range(160)) if problem.asynchronous]
    assert len(problems) > 16
    for problem in problems:
        expected = [seconds for seconds, _ in brute_force_plans(problem, 1)]
        assert [s.step_seconds for s in solve(problem)[0]] == expected


def test_random_problems_are_of_all_sorts() -> None:
    """Some have no plan, of many memory decides the best one, and kinds, uneven nodes and async all occur."""
    problems = [random_problem(seed) for seed in range(240)]
    best = [solve(problem)[0] for problem in problems]
    roomy = [solve(with_memory(problem, 1000.0))[0] for problem in problems]
    without = sum(not found for found in best)
    tight = sum(bool(a) and a[0].step_seconds > b[0].step_seconds for a, b in zip(best, roomy, strict=True))
    assert without > 12
    assert tight > 24
    assert sum(problem.asynchronous for problem in problems) > 24
    assert sum(len(problem.pool.capacity_bytes) > 1 for problem in problems) > 12
    assert sum(len({len(node.devices) for node in problem.pool.nodes}) > 1 for problem in problems) > 24
