"""The exact plan search against brute force, and what it says about itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nereus.errors import UserError
from nereus.planner.found import Report, Solution
from nereus.planner.problem import Edge, Holder, Pool, Problem, Rows, Stage
from nereus.planner.solve import solve
from tests.planner.checking import assert_holds
from tests.planner.exhaustive import brute_force_plans, literal
from tests.planner.instances import CAPACITY, random_problem, relabelled, with_memory, with_nodes

QUICK_SEEDS = [seed for seed in range(60) if seed not in (9, 17, 34, 39, 48)]
"""Without the ones on which brute force takes a second and more; `test_search_thoroughly` has those."""


def seconds_of(problem: Problem) -> float:
    """L_step of the best plan; infinite where there is none."""
    solutions, _ = solve(problem)
    return solutions[0].step_seconds if solutions else float("inf")


def make_holder(name: str, stage: Stage, *rows: tuple[float, int, float, float], layout: tuple[int, ...] = ()) -> Holder:
    """A holder with rows of (seconds, devices, resident, active) and quantum 1."""
    seconds, devices, resident, active = (list(column) for column in zip(*rows, strict=True))
    return Holder(name, (stage,), Rows.of(seconds, devices, resident, active, 1, list(layout) or list(range(len(rows)))))


@pytest.mark.parametrize("top", [1, 5])
def test_search_finds_the_best_plans_of_random_problems(top: int) -> None:
    for seed in QUICK_SEEDS if top == 1 else QUICK_SEEDS[:25]:
        problem = random_problem(seed)
        found, _ = solve(problem, top)
        expected = brute_force_plans(problem, top)
        assert [solution.step_seconds for solution in found] == [seconds for seconds, _ in expected], seed
        for solution in found:
            assert_holds(problem, solution)


def test_brute_force_equals_trying_every_set_of_devices() -> None:
    """The oracle adds up patterns instead of listing device sets; on pools of four devices both are done."""
    feasible = 0
    for seed in range(60):
        problem = random_problem(seed)
        if len(problem.holders) == 5 or len(problem.pool.capacity_bytes) > 1:
            continue
        small = (t.rows.take(np.argsort(t.rows.num_devices, kind="stable")[:2]) for t in problem.holders)
        holders = tuple(replace(t, rows=rows) for t, rows in zip(problem.holders, small, strict=True))
        pool = Pool.of([3, 1] if seed % 2 else [2, 2], CAPACITY * 1.5)
        few = Problem(holders, pool, problem.edges, problem.asynchronous, problem.overlaps)
        best = brute_force_plans(few)
        assert (best[0][0] if best else float("inf")) == literal(few), seed
        feasible += bool(best)
    assert feasible > 10


def test_search_gives_the_same_answer_each_time() -> None:
    for seed in QUICK_SEEDS[:20]:
        assert solve(random_problem(seed), 3) == solve(random_problem(seed), 3)


def test_more_choices_begin_with_the_fewer_ones() -> None:
    for seed in QUICK_SEEDS[:20]:
        problem = random_problem(seed)
        few, many = (solve(problem, top)[0] for top in (1, 4))
        assert [s.step_seconds for s in few] == [s.step_seconds for s in many[:1]]


def test_solutions_differ_in_the_shape_of_some_holder() -> None:
    for seed in QUICK_SEEDS[:20]:
        shapes = [solution.shape for solution in solve(random_problem(seed), 6)[0]]
        assert len(set(shapes)) == len(shapes)


# --- directions in which the answer may not move -----------------------------------------------------------------------


def test_more_memory_never_makes_the_best_exact_plan_slower() -> None:
    for seed in range(50):
        problem = random_problem(seed)
        seconds = [seconds_of(with_memory(problem, factor)) for factor in (0.7, 1.0, 1.3, 2.0, 5.0)]
        assert seconds == sorted(seconds, reverse=True), seed


def test_one_more_device_never_makes_the_best_exact_plan_slower() -> None:
    for seed in range(50):
        problem = random_problem(seed)
        sizes = [len(node.devices) for node in problem.pool.nodes]
        kinds = [node.kind for node in problem.pool.nodes]
        fewer = seconds_of(problem)
        at = seed % len(sizes)
        assert seconds_of(with_nodes(problem, [*sizes[:at], sizes[at] + 1, *sizes[at + 1 :]], kinds)) <= fewer, seed
        assert seconds_of(with_nodes(problem, [*sizes, 1], [*kinds, 0])) <= fewer, seed


def test_devices_and_nodes_under_other_names_change_nothing() -> None:
    for seed in range(30):
        problem = random_problem(seed)
        found, _ = solve(problem, 3)
        renamed, _ = solve(relabelled(problem, seed), 3)
        assert [(s.step_seconds, s.rows) for s in renamed] == [(s.step_seconds, s.rows) for s in found], seed


# --- what shares devices, and what it costs ----------------------------------------------------------------------------

SCORERS = (
    make_holder("ref", Stage.INFERENCE, (4.0, 4, 1, 1), (8.0, 2, 1, 1)),
    make_holder("rew", Stage.INFERENCE, (4.0, 4, 1, 1), (8.0, 2, 1, 1)),
)


def test_holders_that_share_devices_are_serialized_and_those_apart_are_not() -> None:
    assert seconds_of(Problem(SCORERS, Pool.of([4], 10.0))) == 8.0
    assert seconds_of(Problem(SCORERS, Pool.of([8], 10.0))) == 4.0


def test_job_that_overlaps_nothing_adds_its_model_stages_up() -> None:
    assert seconds_of(Problem(SCORERS, Pool.of([8], 10.0), overlaps=False)) == 8.0


def test_asynchronous_generation_has_devices_of_its_own() -> None:
    holders = (
        make_holder("gen", Stage.GENERATION, (6.0, 4, 1, 1), (12.0, 2, 1, 1)),
        make_holder("actor", Stage.TRAINING, (5.0, 4, 1, 1), (10.0, 2, 1, 1)),
    )
    assert seconds_of(Problem(holders, Pool.of([4], 10.0))) == 11.0
    (best,), _ = solve(Problem(holders, Pool.of([4], 10.0), asynchronous=True))
    assert best.step_seconds == 12.0
    assert best.placement == (((1, 2), (2, 2)),)


def test_pinned_holder_stays_on_its_devices_and_others_fit_around_it() -> None:
    pinned = replace(make_holder("actor", Stage.TRAINING, (5.0, 2, 8, 1)), devices=(1, 4))
    other = make_holder("gen", Stage.GENERATION, (1.0, 6, 1, 1), (2.0, 4, 1, 1))
    (best,), _ = solve(Problem((pinned, other), Pool.of([3, 3], 9.0)))
    assert best.step_seconds == 7.0
    assert best.placement == (((1, 1), (2, 2)), ((1, 1), (2, 2)))


def test_latency_that_hides_behind_another_holder_does_not_pay_for_a_dearer_weight_sync() -> None:
    """The faster actor saves nothing, since the critic takes longer, and its layout makes the sync dearer."""
    gen = make_holder("gen", Stage.GENERATION, (1.0, 1, 1, 1))
    actor = make_holder("actor", Stage.TRAINING, (3.0, 1, 1, 1), (5.0, 1, 1, 1))
    critic = make_holder("critic", Stage.TRAINING, (10.0, 1, 1, 1))
    sync = Edge(0, 1, np.array([[0.9, 0.1]]))
    assert seconds_of(Problem((gen, actor, critic), Pool.of([4], 10.0), (sync,))) == pytest.approx(11.1)


def test_more_holders_in_a_stage_than_can_be_ordered_exactly_are_refused() -> None:
    scorers = tuple(make_holder(f"scorer{i}", Stage.INFERENCE, (1.0, 1, 1, 1)) for i in range(5))
    with pytest.raises(UserError, match="inference: 5 model-stages"):
        Problem(scorers, Pool.of([8], 10.0))
    assert seconds_of(Problem(scorers, Pool.of([8], 10.0), overlaps=False)) == 5.0


# --- what it reports ---------------------------------------------------------------------------------------------------


def test_report_counts_the_work_and_takes_its_time_from_the_callers_clock() -> None:
    ticks = iter((10.0, 12.5))
    found, report = solve(random_problem(14), clock=lambda: next(ticks))
    assert isinstance(report, Report)
    assert all(isinstance(solution, Solution) for solution in found)
    assert report.seconds == 2.5
    assert report.tree_nodes > 0
    assert report.leaves > 0
    assert report.relaxed_not_placed == 0
    assert len(report.frontier_rows) == 5
