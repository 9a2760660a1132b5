"""Why not another plan: what is in the way of each holder's faster candidates, and where runners-up lose their time.

memory    on the devices that are left it doesn't fit beside the others
host      what it offloads doesn't fit in the memory of the hosts
budget    there are not enough devices for what must run at the same time, so something would have to wait
latency   it fits, and the step takes longer
pinned    the outline settles it (pinned.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from nereus.planner.found import Solution
from nereus.planner.problem import Pool, Problem, Rows
from nereus.planner.solve import solve

UNLIMITED_BYTES = 2.0**60
"""More memory than any device has: what is still in the way then is not memory."""


TIE = 1e-9
"""Share of a step below which two plans are equally fast."""


class Why(StrEnum):
    """What a plan lost by."""

    MEMORY = "memory"
    HOST = "host"
    BUDGET = "budget"
    LATENCY = "latency"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one alternative was not chosen."""

    holder: str
    """In which it differs the most."""
    row: int
    """Its candidate there, in the holder's table; -1 for no one in particular."""
    code: Why
    seconds: float
    """What the alternative loses in a step (latency), or would save if nothing were in its way."""
    sentence: str


def why_slower(problem: Problem, best: Solution, other: Solution) -> Reason:
    """Where a runner-up loses: the holder whose latency is further above the best plan's than any other's."""
    gaps = []
    for i, holder in enumerate(problem.holders):
        mine, theirs = (float(holder.rows.seconds[:, solution.rows[i]].sum()) for solution in (best, other))
        gaps.append((theirs - mine, -i))
    gap, at = max(gaps)
    holder, row = problem.holders[-at], other.rows[-at]
    lost = other.step_seconds - best.step_seconds
    if lost <= TIE * best.step_seconds:
        return Reason(holder.name, row, Why.LATENCY, lost, "as fast, and no better in anything that counts")
    where = f"{holder.name} takes {gap:.3g} s longer" if gap > 0 else "model-stages wait for each other or for a dearer sync"
    return Reason(holder.name, row, Why.LATENCY, lost, f"{lost:.3g} s per step slower: {where}")


def why_not_faster(problem: Problem, best: Solution) -> tuple[Reason, ...]:
    """For each holder with a faster candidate that would help: what keeps the fastest one out of the best plan."""
    reasons = []
    for i, holder in enumerate(problem.holders):
        seconds = holder.rows.seconds.sum(0)
        fastest = int(np.argmin(seconds))
        if seconds[fastest] < seconds[best.rows[i]]:
            reason = _in_the_way(problem, best, i, fastest)
            if reason is not None:
                reasons.append(reason)
    return tuple(reasons)


def _in_the_way(problem: Problem, best: Solution, holder: int, row: int) -> Reason | None:
    """Why the best plan with one other row is not better; None if the row would not help whatever the pool."""
    rows = [row if i == holder else chosen for i, chosen in enumerate(best.rows)]
    fixed = [t.rows.take(t.rows.index == chosen) for t, chosen in zip(problem.holders, rows, strict=True)]
    name, pool = problem.holders[holder].name, problem.pool
    own = fixed[holder]
    without_limits = _step_seconds(problem, fixed, _unlimited(pool, hosts=True))
    ideal = _ideal_seconds(problem, fixed)
    if ideal >= best.step_seconds:
        return None
    saved = best.step_seconds - (ideal if without_limits >= best.step_seconds else without_limits)
    faster = f"A faster {name} on {own.num_devices[0]} devices would save {saved:.3g} s per step, but "
    if without_limits >= best.step_seconds:
        needed = int(sum(table.num_devices[0] for table in fixed))
        sentence = f"the pool has {pool.num_devices} devices, and all model-stages side by side need {needed}"
        return Reason(name, row, Why.BUDGET, saved, faster + sentence)
    if own.host_bytes[0] and _step_seconds(problem, fixed, _unlimited(pool, hosts=False)) >= best.step_seconds:
        size = own.host_bytes[0] * own.num_devices[0] / 1e9
        sentence = f"it offloads {size:.3g} GB, for which the memory of the hosts is too small"
        return Reason(name, row, Why.HOST, saved, faster + sentence)
    full, capacity = own.resident_bytes[0] + own.active_bytes[0], pool.capacity_bytes[int(own.kind[0])]
    beside = "alone" if full > capacity else "beside the others"
    sentence = f"it needs {full / 1e9:.3g} GB of {capacity / 1e9:.3g} GB on each device and doesn't fit {beside}"
    return Reason(name, row, Why.MEMORY, saved, faster + sentence)


def _step_seconds(problem: Problem, fixed: Sequence[Rows], pool: Pool) -> float:
    """L_step of the only plan of fixed rows on a pool; infinite where it can't be placed."""
    holders = tuple(replace(t, rows=rows) for t, rows in zip(problem.holders, fixed, strict=True))
    found, _ = solve(Problem(holders, pool, problem.edges, problem.asynchronous, problem.overlaps))
    return found[0].step_seconds if found else float("inf")


def _unlimited(pool: Pool, *, hosts: bool) -> Pool:
    """The pool with devices, or hosts too, that memory does not bound."""
    nodes = tuple(replace(node, host_bytes=UNLIMITED_BYTES) for node in pool.nodes) if hosts else pool.nodes
    return Pool(nodes, (UNLIMITED_BYTES,) * len(pool.capacity_bytes))


def _ideal_seconds(problem: Problem, fixed: Sequence[Rows]) -> float:
    """L_step of fixed rows if every holder had devices of its own."""
    sizes, kinds = [], []
    for rows in fixed:
        sizes.append(int(rows.num_devices[0]))
        kinds.append(int(rows.kind[0]))
    roomy = _unlimited(Pool.of(sizes, (UNLIMITED_BYTES,) * len(problem.pool.capacity_bytes), kinds), hosts=True)
    loose = [replace(rows, quantum=np.ones_like(rows.quantum)) for rows in fixed]
    holders = tuple(replace(t, rows=rows, devices=None) for t, rows in zip(problem.holders, loose, strict=True))
    found, _ = solve(Problem(holders, roomy, problem.edges, problem.asynchronous, problem.overlaps))
    return found[0].step_seconds
