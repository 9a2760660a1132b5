"""The exact plan search against brute force on hundreds of random problems, the one best plan and the five best."""

from __future__ import annotations

import pytest

from nereus.planner.solve import solve
from tests.planner.checking import assert_holds
from tests.planner.exhaustive import brute_force_plans
from tests.planner.instances import random_problem, with_memory


@pytest.mark.parametrize(("top", "seeds"), [(1, range(240)), (5, range(240, 330))])
def test_search_equals_brute_force(top: int, seeds: range) -> None:
    without_plan = tight = 0
    for seed in seeds:
        problem = random_problem(seed)
        found, report = solve(problem, top)
        assert [s.step_seconds for s in found] == [seconds for seconds, _ in brute_force_plans(problem, top)], seed
        assert report.relaxed_not_placed == 0
        for solution in found:
            assert_holds(problem, solution)
        roomy, _ = solve(with_memory(problem, 1000.0))
        without_plan += not found
        tight += bool(found and found[0].step_seconds > roomy[0].step_seconds)
    assert without_plan > len(seeds) // 20, "some problems have no plan"
    assert tight > len(seeds) // 10, "of some problems memory decides the best plan"
