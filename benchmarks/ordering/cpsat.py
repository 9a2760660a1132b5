"""The model in OR-tools' CP-SAT: intervals, lanes that do not overlap, cumulative uplinks, memory as reservoirs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from benchmarks.ordering.model import TICK_S, Model
from benchmarks.ordering.solved import Solved


def solve(model: Model, limit_s: float) -> Solved:
    """The shortest order that CP-SAT finds within the time, on one worker."""
    from ortools.sat.python import cp_model

    tasks = model.problem.tasks
    lengths = [round(task.seconds / TICK_S) for task in tasks]
    horizon = sum(lengths)
    cp = cp_model.CpModel()
    starts = [cp.new_int_var(0, horizon, "") for _ in tasks]
    intervals = [cp.new_fixed_size_interval_var(start, length, "") for start, length in zip(starts, lengths, strict=True)]
    end = cp.new_int_var(0, horizon, "end")
    for index, before in enumerate(model.free):
        cp.add(end >= starts[index] + lengths[index])
        for other in before:
            cp.add(starts[index] >= starts[other] + lengths[other])
    _lanes(cp, model, intervals)
    _memory(cp, model, starts, lengths)
    cp.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 1
    status = solver.solve(cp)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved("optimal" if status == cp_model.OPTIMAL else "feasible", solver.objective_value * TICK_S)
    return Solved("infeasible" if status == cp_model.INFEASIBLE else "limit", None)


def _lanes(cp: Any, model: Model, intervals: list[Any]) -> None:
    lanes: defaultdict[str, list[int]] = defaultdict(list)
    links: defaultdict[str, list[int]] = defaultdict(list)
    for index, task in enumerate(model.problem.tasks):
        for member in task.members:
            lanes[member].append(index)
        for link in task.uplinks:
            links[link].append(index)
    for lane in {tuple(of_one) for of_one in lanes.values() if len(of_one) > 1}:
        cp.add_no_overlap([intervals[index] for index in lane])
    for link, users in links.items():
        if len(users) > 1:
            shares = [round(100 * model.problem.tasks[index].uplinks[link]) for index in users]
            cp.add_cumulative([intervals[index] for index in users], shares, 100)


def _memory(cp: Any, model: Model, starts: list[Any], lengths: list[int]) -> None:
    events: defaultdict[str, list[tuple[int, bool, int]]] = defaultdict(list)
    for index, task in enumerate(model.problem.tasks):
        for endpoint, size in task.takes.items():
            events[endpoint].append((index, False, size))
        for endpoint, size in task.gives.items():
            events[endpoint].append((index, True, -size))
    seen: set[object] = set()
    for endpoint, of_one in events.items():
        held = model.problem.held.get(endpoint, 0)
        key = held, tuple(of_one)
        if key in seen or held + sum(size for _, _, size in of_one if size > 0) <= model.problem.usable_bytes:
            continue
        seen.add(key)
        times = [0, *(starts[index] + (lengths[index] if at_end else 0) for index, at_end, _ in of_one)]
        changes = [held, *(size for _, _, size in of_one)]
        cp.add_reservoir_constraint(times, changes, 0, int(model.problem.usable_bytes))
