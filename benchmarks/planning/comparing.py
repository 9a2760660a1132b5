"""The search against brute force over every combination and placement, on small random problems, with a third checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nereus.planner.problem import Problem
from nereus.planner.solve import solve
from tests.planner.checking import assert_holds
from tests.planner.exhaustive import brute_force_plans
from tests.planner.instances import random_problem


@dataclass(frozen=True)
class Compared:
    """What came out."""

    instances: int
    not_optimal: int
    """The search's L_step is not that of brute force, or its placement does not hold."""
    without_plan: int
    uneven: int
    mixed_kinds: int
    asynchronous: int


def run(instances: int, announce: Callable[[str], None]) -> Compared:
    """Compare the best plan of so many problems of two to five holders on up to 16 devices."""
    problems = [random_problem(seed) for seed in range(instances)]
    wrong = without = 0
    for seed, problem in enumerate(problems):
        expected = brute_force_plans(problem)
        without += not expected
        if not _optimal(problem, expected[0][0] if expected else None):
            wrong += 1
            announce(f"instance {seed}: not optimal")
    return Compared(
        instances,
        wrong,
        without,
        sum(len({len(node.devices) for node in problem.pool.nodes}) > 1 for problem in problems),
        sum(len(problem.pool.capacity_bytes) > 1 for problem in problems),
        sum(problem.asynchronous for problem in problems),
    )


def _optimal(problem: Problem, expected: float | None) -> bool:
    solutions, _ = solve(problem)
    if not solutions or expected is None:
        return not solutions and expected is None
    try:
        assert_holds(problem, solutions[0])
    except AssertionError:
        return False
    return solutions[0].step_seconds == expected
