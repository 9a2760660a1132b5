"""Pools of several kinds: budgets of each kind bound the search, and it stays exact."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.planning.roofline import Case, ppo
from nereus.planner.kinds import KindBudgets
from nereus.planner.problem import Pool, Problem, Stage
from nereus.planner.solve import solve
from tests.planner.checking import assert_holds
from tests.planner.exhaustive import brute_force_plans
from tests.planner.instances import random_kinds
from tests.planner.test_exact_search import make_holder


@pytest.mark.parametrize("top", [1, 4])
def test_search_on_several_kinds_equals_brute_force(top: int) -> None:
    feasible = several = 0
    for seed in range(80 if top == 1 else 30):
        problem = random_kinds(seed)
        if len(problem.holders) == 5:
            continue
        found, _ = solve(problem, top)
        assert [s.step_seconds for s in found] == [seconds for seconds, _ in brute_force_plans(problem, top)], seed
        feasible += bool(found)
        for solution in found:
            assert_holds(problem, solution)
            rows = zip(problem.holders, solution.rows, strict=True)
            several += len({int(holder.rows.kind[row]) for holder, row in rows}) > 1
    assert feasible > 10
    assert several > 4


def test_devices_of_a_kind_are_shared_out_among_its_holders() -> None:
    """Two scorers of which one takes a fast node whole: the other one is left to the slow kind."""
    rows = (2.0, 4, 1.0, 1.0), (9.0, 4, 1.0, 1.0)
    holders = tuple(make_holder(name, Stage.INFERENCE, *rows) for name in ("reference", "reward"))
    for holder in holders:
        holder.rows.kind[:] = [0, 1]
    problem = Problem(holders, Pool.of([4, 4], [10.0, 10.0], [0, 1]))
    budgets = KindBudgets(problem, [holder.rows for holder in holders])
    dead, raised = budgets.spend((0, 1), {0: np.array([0, 1])}, None)
    assert not dead.any()
    ((holder, stage, floor),) = raised
    assert (holder, stage, floor[:, 0].tolist()) == (1, Stage.INFERENCE, [9.0, 2.0])
    _, both = budgets.spend((0, 1), {}, None)
    assert [floor.item() for holder, _, floor in both if holder is None] == [9.0]
    dead, _ = budgets.spend((0, 1), {0: np.array([0])}, 1)
    assert dead.tolist() == [[True, False]]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tree_of_two_kinds_stays_small(asynchronous: bool) -> None:
    """With one budget for all devices the tree had 2,468 and 4,915 nodes."""
    found, report = solve(ppo(Case((8,) * 8, 512, 2048, 72e9, asynchronous, slow_nodes=4)))
    assert found
    assert report.tree_nodes < 1200
