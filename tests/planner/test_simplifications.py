"""Each tempting simplification of the search, switched on alone, makes it wrong on problems that the search gets right."""

from __future__ import annotations

import pytest

from nereus.planner.solve import solve
from tests.planner.exhaustive import brute_force_plans
from tests.planner.instances import random_problem
from tests.planner.simplified import SIMPLIFICATIONS

CAUGHT_ON = {
    "memory_of_all_on_every_device": (3, 11, 23),
    "dominance_by_latency_and_devices": (23, 47, 63),
    "dominance_without_active_bytes": (47, 251, 652),
    "dominance_without_quantum": (694, 712, 1482),
    "dominance_blind_to_edges": (55, 411, 699),
    "latency_always_counts_in_full": (399, 699, 848),
    "greedy_placement": (51, 138, 179),
    "without_integer_program": (138, 212, 474),
    "frontier_of_one": (10, 13, 15),
    "free_latency_decides_alone": (113,),
}
"""Random problems on which a simplification loses the optimum; of 400, between 1 and 123 catch it."""


def plans_sought(name: str) -> int:
    return 5 if name == "frontier_of_one" else 1


def test_every_simplification_has_problems_that_catch_it() -> None:
    assert set(CAUGHT_ON) == set(SIMPLIFICATIONS)


@pytest.mark.parametrize("name", CAUGHT_ON)
def test_simplification_loses_plans_that_the_search_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    top = plans_sought(name)
    for seed in CAUGHT_ON[name]:
        problem = random_problem(seed)
        expected = [seconds for seconds, _ in brute_force_plans(problem, top)]
        assert [solution.step_seconds for solution in solve(problem, top)[0]] == expected
        with monkeypatch.context() as patch:
            SIMPLIFICATIONS[name](patch)
            assert [solution.step_seconds for solution in solve(problem, top)[0]] != expected
