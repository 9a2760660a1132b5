"""The search with candidates that keep state on the host: one more dimension, bounded node by node, and exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nereus.planner.explain import Why, why_not_faster
from nereus.planner.problem import Holder, Node, Pool, Problem, Rows, Stage
from nereus.planner.solve import solve
from tests.planner.checking import assert_holds
from tests.planner.exhaustive import brute_force_plans, literal
from tests.planner.instances import CAPACITY, random_offloads, relabelled, replaced, with_hosts, with_memory
from tests.planner.simplified import OFFLOADING

SLOW_SEEDS = (9, 39, 73)
"""On which brute force takes a second and more; `benchmarks.planner` has those."""

CAUGHT_ON = {
    "dominance_without_host": (77, 311),
    "hosts_of_a_kind_are_one": (51, 100, 163),
    "host_shared_out_over_devices": (82, 108, 122),
}
"""Random problems on which a simplification loses the optimum; of 900, 2, 18 and 44 catch it."""


def seconds_of(problem: Problem) -> float:
    found, _ = solve(problem)
    return found[0].step_seconds if found else float("inf")


@pytest.mark.parametrize("top", [1, 3])
def test_search_with_offloading_equals_brute_force(top: int) -> None:
    for seed in range(100) if top == 1 else range(100, 140):
        if seed in SLOW_SEEDS:
            continue
        problem = random_offloads(seed)
        found, report = solve(problem, top)
        assert [s.step_seconds for s in found] == [seconds for seconds, _ in brute_force_plans(problem, top)], seed
        assert report.relaxed_not_placed == 0
        for solution in found:
            assert_holds(problem, solution)


def test_random_problems_offload_and_run_short_of_hosts() -> None:
    used = short = 0
    for seed in range(100):
        problem = random_offloads(seed)
        found, _ = solve(problem)
        used += any(h.rows.host_bytes[row] for s in found for h, row in zip(problem.holders, s.rows, strict=True))
        short += seconds_of(with_hosts(problem, 1000.0)) < seconds_of(problem)
    assert used > 8
    assert short > 8


def test_brute_force_with_hosts_equals_trying_every_set_of_devices() -> None:
    feasible = 0
    for seed in range(150):
        problem = random_offloads(seed)
        if len(problem.holders) == 5 or len(problem.pool.capacity_bytes) > 1:
            continue
        small = (t.rows.take(np.argsort(t.rows.num_devices, kind="stable")[:2]) for t in problem.holders)
        holders = tuple(replace(t, rows=rows) for t, rows in zip(problem.holders, small, strict=True))
        hosts = [node.host_bytes / 4 for node in problem.pool.nodes[:2]]
        sizes = ([3, 1] if seed % 2 else [2, 2])[: len(hosts)]
        few = Problem(holders, Pool.of(sizes, CAPACITY, None, hosts), (), problem.asynchronous, problem.overlaps)
        best = brute_force_plans(few)
        assert (best[0][0] if best else float("inf")) == literal(few), seed
        feasible += bool(best)
    assert feasible > 8


def test_more_host_memory_or_device_memory_never_makes_the_best_plan_slower() -> None:
    for seed in range(80):
        problem = random_offloads(seed)
        hosts = [seconds_of(with_hosts(problem, factor)) for factor in (0.0, 0.5, 1.0, 2.0)]
        assert hosts == sorted(hosts, reverse=True), seed
        memory = [seconds_of(with_memory(problem, factor)) for factor in (0.8, 1.0, 1.3)]
        assert memory == sorted(memory, reverse=True), seed


def test_one_more_device_on_a_node_never_makes_the_best_plan_slower() -> None:
    for seed in range(60):
        problem = random_offloads(seed)
        nodes = [*problem.pool.nodes]
        at = seed % len(nodes)
        nodes[at] = replace(nodes[at], devices=(*nodes[at].devices, 10_000))
        assert seconds_of(replaced(problem, Pool(tuple(nodes), problem.pool.capacity_bytes))) <= seconds_of(problem), seed


def test_nodes_under_other_names_change_nothing() -> None:
    for seed in range(40):
        problem = random_offloads(seed)
        found, renamed = (solve(p)[0] for p in (problem, relabelled(problem, seed)))
        assert [(s.step_seconds, s.rows) for s in found] == [(s.step_seconds, s.rows) for s in renamed], seed


@pytest.mark.parametrize("name", CAUGHT_ON)
def test_simplification_loses_plans_with_offloading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(CAUGHT_ON) == set(OFFLOADING)
    for seed in CAUGHT_ON[name]:
        problem = random_offloads(seed)
        expected = [seconds for seconds, _ in brute_force_plans(problem)]
        assert [s.step_seconds for s in solve(problem)[0]] == expected
        with monkeypatch.context() as patch:
            OFFLOADING[name](patch)
            assert [s.step_seconds for s in solve(problem)[0]] != expected


def scorer(host_bytes: float) -> Problem:
    """A scorer that takes 8 s, or 2 s with half of its state on the hosts of two nodes."""
    rows = Rows.of([[8.0, 2.0]], [1, 4], [9.0, 6.0], [1.0, 1.0], 1, [0, 1], 0, [0.0, 5.0])
    nodes = (Node((0, 1), 0, host_bytes), Node((2, 3), 0, host_bytes))
    return Problem((Holder("reference", (Stage.INFERENCE,), rows),), Pool(nodes, (10.0,)))


def test_each_node_bounds_what_its_devices_offload() -> None:
    assert seconds_of(scorer(10.0)) == 2.0
    assert seconds_of(scorer(9.0)) == 8.0
    uneven = Pool((Node((0, 1), 0, 15.0), Node((2, 3), 0, 5.0)), (10.0,))
    assert seconds_of(replaced(scorer(0.0), uneven)) == 8.0


def test_host_that_is_too_small_is_the_reason() -> None:
    problem = scorer(9.0)
    (best,), _ = solve(problem)
    (reason,) = why_not_faster(problem, best)
    assert reason.code is Why.HOST
    assert "offloads" in reason.sentence
