"""Mid-sized problems as one model of Google OR-tools' CP-SAT, solved within a time limit on one worker.

Unknown: the row of every holder, and for every node how many devices host each set of holders. The model knows none of the
search's ideas; it is given every row that fits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.planning.roofline import Case, ppo
from nereus.planner.frontier import fitting
from nereus.planner.problem import Problem, Rows, Stage
from nereus.planner.solve import solve

TICKS_PER_S = 10_000
"""CP-SAT counts whole numbers: latencies are rounded to a tenth of a millisecond."""

BYTES = 1 << 20
"""Memory is rounded up to MiB."""

CASES = tuple(
    Case(sizes, 64, tokens, capacity, asynchronous, fine=False)
    for sizes in ((8,) * 2, (8,) * 4, (8, 8, 6, 2))
    for tokens, capacity in ((2048, 72e9), (8192, 40e9))
    for asynchronous in (False, True)
)
QUICK = (CASES[0], CASES[7])


@dataclass(frozen=True)
class Gap:
    """One problem."""

    case: Case
    step_seconds: float
    cpsat_seconds: float | None
    """The best plan that CP-SAT found; None: none within the time."""
    cpsat_bound: float
    """CP-SAT's own proof: no plan is faster."""

    @property
    def gap(self) -> float | None:
        """By how much the search's plan is slower than CP-SAT's; negative: faster."""
        return None if self.cpsat_seconds is None else self.step_seconds / self.cpsat_seconds - 1


def run(cases: Sequence[Case], limit_s: float, announce: Callable[[str], None]) -> list[Gap] | None:
    """Both on every case; None where OR-tools is not installed."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return None
    gaps = []
    for case in cases:
        problem = ppo(case)
        solutions, _ = solve(problem)
        found, bound = _solve(cp_model, problem, limit_s)
        gaps.append(Gap(case, solutions[0].step_seconds if solutions else float("inf"), found, bound))
        announce(f"{case.name}: search {gaps[-1].step_seconds:.4f} s, CP-SAT {found} s, its bound {bound:.4f} s")
    return gaps


def _solve(cp: Any, problem: Problem, limit_s: float) -> tuple[float | None, float]:
    model = cp.CpModel()
    tables = [holder.rows.take(fitting(holder.rows, problem.pool)) for holder in problem.holders]
    chosen = [[model.new_bool_var("") for _ in range(len(table))] for table in tables]
    for of_holder in chosen:
        model.add_exactly_one(of_holder)
    shared = _place(model, problem, tables, chosen)
    longest = int(sum(table.seconds.max(1).sum() for table in tables) * TICKS_PER_S) + 1
    lengths = {stage: _stage(model, problem, stage, tables, chosen, shared, longest) for stage in problem.stages}
    syncs = [_sync(model, edge, tables, chosen) for edge in problem.edges]
    total = model.new_int_var(0, 2 * longest, "")
    rest = sum(length for stage, length in lengths.items() if not problem.asynchronous or stage is not Stage.GENERATION)
    model.add(total >= rest + sum(syncs))
    if problem.asynchronous:
        model.add(total >= lengths[Stage.GENERATION] + sum(syncs))
    model.minimize(total)
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    found = solver.objective_value / TICKS_PER_S if status in (cp.OPTIMAL, cp.FEASIBLE) else None
    return found, solver.best_objective_bound / TICKS_PER_S


def _place(model: Any, problem: Problem, tables: list[Rows], chosen: list[list[Any]]) -> dict[tuple[int, int], Any]:
    """Devices per node and set of holders; returns which holders share some device."""
    holders = range(len(tables))
    shared = {pair: model.new_bool_var("") for pair in combinations(holders, 2)}
    capacity = int(problem.pool.capacity_bytes[0] // BYTES)
    needs = [_linear(chosen[i], -(-tables[i].resident_bytes // BYTES)) for i in holders]
    active = [_linear(chosen[i], -(-tables[i].active_bytes // BYTES)) for i in holders]
    placed: list[list[Any]] = [[] for _ in holders]
    hosted = [set(group) for size in range(len(tables) + 1) for group in combinations(holders, size)]
    for group in hosted:
        used = model.new_bool_var("")
        for i in group:
            model.add(sum(needs[j] for j in group) + active[i] <= capacity).only_enforce_if(used)
        for pair in combinations(sorted(group), 2):
            model.add_implication(used, shared[pair])
        for at, node in enumerate(problem.pool.nodes):
            count = model.new_int_var(0, len(node.devices), "")
            model.add(count == 0).only_enforce_if(used.negated())
            for i in holders:
                placed[i].append((at, count if i in group else None))
            placed.append([(at, count)])
    for at, node in enumerate(problem.pool.nodes):
        model.add(sum(c for of_group in placed[len(tables) :] for n, c in of_group if n == at) == len(node.devices))
    for i in holders:
        _quanta(model, problem, tables[i], chosen[i], placed[i])
    if problem.asynchronous:
        for a, b in combinations(holders, 2):
            if (Stage.GENERATION in problem.holders[a].stages) != (Stage.GENERATION in problem.holders[b].stages):
                model.add(shared[a, b] == 0)
    return shared


def _quanta(model: Any, problem: Problem, table: Rows, chosen: list[Any], placed: list[Any]) -> None:
    """Devices of a holder add up to its row's, in every node to a multiple of its quantum."""
    model.add(sum(c for _, c in placed if c is not None) == _linear(chosen, table.num_devices))
    for at, node in enumerate(problem.pool.nodes):
        here = sum(c for n, c in placed if n == at and c is not None)
        for quantum in np.unique(table.quantum):
            if quantum > 1:
                times = model.new_int_var(0, len(node.devices) // int(quantum), "")
                taken = model.new_bool_var("")
                model.add(taken == sum(x for x, q in zip(chosen, table.quantum, strict=True) if q == quantum))
                model.add(here == int(quantum) * times).only_enforce_if(taken)


def _stage(
    model: Any,
    problem: Problem,
    stage: Stage,
    tables: list[Rows],
    chosen: list[list[Any]],
    shared: dict[tuple[int, int], Any],
    longest: int,
) -> Any:
    """The length of a stage: at least that of every set of holders that pairwise share devices."""
    length = model.new_int_var(0, longest, "")
    active = problem.active_in(stage)
    seconds = {
        i: _linear(chosen[i], np.rint(tables[i].seconds[problem.holders[i].stages.index(stage)] * TICKS_PER_S))
        for i in active
    }
    for size in range(1, len(active) + 1):
        for group in combinations(active, size):
            serial = [shared[pair] for pair in combinations(group, 2)]
            bound = model.add(length >= sum(seconds[i] for i in group))
            if serial:
                bound.only_enforce_if(serial)
    return length


def _sync(model: Any, edge: Any, tables: list[Rows], chosen: list[list[Any]]) -> Any:
    """Seconds of a weight sync, by the layout classes of both ends."""
    cost = model.new_int_var(0, int(edge.seconds.max() * TICKS_PER_S) + 1, "")
    ends = []
    for end in (edge.source, edge.target):
        classes = {}
        for layout in np.unique(tables[end].layout):
            classes[int(layout)] = model.new_bool_var("")
            members = [x for x, own in zip(chosen[end], tables[end].layout, strict=True) if own == layout]
            model.add(classes[int(layout)] == sum(members))
        ends.append(classes)
    for a, is_a in ends[0].items():
        for b, is_b in ends[1].items():
            model.add(cost >= round(float(edge.seconds[a, b]) * TICKS_PER_S)).only_enforce_if([is_a, is_b])
    return cost


def _linear(chosen: list[Any], values: Any) -> Any:
    return sum(x * int(value) for x, value in zip(chosen, values, strict=True))
