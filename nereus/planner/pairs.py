"""Which candidates of two holders can be in one plan, and which rows dominate others once latency alone differs.

Both are asked for whole blocks of partial plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nereus.planner.frontier import Dominance, dearer
from nereus.planner.overlap import OverlapSet
from nereus.planner.problem import Bools, Floats, Ints, Problem, Rows

MOST_DOMINANCE_CELLS, MOST_ROWS_ASIDE = 500_000, 400
"""Comparisons per block, and rows: above, the dominance inside a block takes longer than the children that it saves."""


class Pairs:
    """Two holders with more devices than the pool has must share some: they must fit together and be allowed to."""

    def __init__(self, problem: Problem, rows: Sequence[Rows]) -> None:
        self.rows, self.one_kind = rows, len(problem.pool.capacity_bytes) == 1
        self.pool, self.capacity = problem.pool.devices_of_kind, np.asarray(problem.pool.capacity_bytes)

    def possible(self, overlap: OverlapSet, one: int, chosen: Ints, other: int) -> Bools:
        """(chosen rows of one, all rows of other) Which two candidates fit beside or onto each other."""
        mine, theirs = self.rows[one], self.rows[other]
        kind = mine.kind[chosen][:, None]
        beside = mine.num_devices[chosen][:, None] + theirs.num_devices[None, :] <= self.pool[kind]
        if not self.one_kind:
            beside |= kind != theirs.kind[None, :]
        if (min(one, other), max(one, other)) in overlap.apart or beside.all():
            return np.asarray(beside)
        active = np.maximum(mine.active_bytes[chosen][:, None], theirs.active_bytes[None, :])
        both = mine.resident_bytes[chosen][:, None] + theirs.resident_bytes[None, :] + active
        return np.asarray(beside | (both <= self.capacity[kind]))


class LatencyAside:
    """Rows of one holder of which another lacks only latency to dominate them.

    Where the rest of a stage takes longer anyway, that latency is free, and the dominated row can go.
    """

    def __init__(self, problem: Problem, holder: int, tables: Sequence[Rows]) -> None:
        self.seconds = tables[holder].seconds
        rows = replace(tables[holder], seconds=self.seconds * 0.0)
        self.dominance = Dominance(problem, holder, rows, dearer(problem, holder, tables))

    def dominated(self, floors: Sequence[Floats], wanted: Bools) -> Bools:
        """(partial plans, rows) Wanted rows that another one beats when each role's latency counts only above its floor."""
        found = np.zeros(wanted.shape, bool)
        rows = np.flatnonzero(wanted.any(0))
        if len(rows) < 2 or len(rows) > MOST_ROWS_ASIDE or not any(floor.any() for floor in floors):
            return found
        holds = self.dominance.over(rows, rows)
        np.fill_diagonal(holds, False)
        worse, better = np.nonzero(holds.T)
        if not len(worse) or len(worse) * len(wanted) > MOST_DOMINANCE_CELLS:
            return found
        mutual = holds[worse, better]
        beats = np.ones((len(wanted), len(worse)), bool)
        equal = np.ones((len(wanted), len(worse)), bool)
        for seconds, floor in zip(self.seconds, floors, strict=True):
            above = np.maximum(seconds[None, rows], np.broadcast_to(floor, len(wanted))[:, None])
            beats &= above[:, better] <= above[:, worse]
            equal &= above[:, better] == above[:, worse]
        # Of rows that are equal in everything that counts here, the first one stays.
        beats &= ~(equal & (mutual & (better > worse))[None, :])
        starts = np.flatnonzero(np.diff(worse, prepend=-1))
        found[:, rows[worse[starts]]] = np.logical_or.reduceat(beats, starts, axis=1)
        return found


def rows_of(decided: Ints, order: Sequence[int]) -> dict[int, Ints]:
    """A block of partial plans (plans, holders decided) as a column for every holder."""
    return {holder: decided[:, at] for at, holder in enumerate(order[: decided.shape[1]])}
