"""Which candidates of two tenants can be in one plan, and which rows dominate others once latency alone differs.

Both are tables over pairs of frontier rows, made once per search and read for whole blocks of partial plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from nereus.planner.frontier import Dominance
from nereus.planner.overlap import OverlapSet
from nereus.planner.problem import Bools, Floats, Ints, Problem, Rows

MOST_DOMINANCE_CELLS = 2_000_000
"""Comparisons per block: above, the dominance inside a block takes longer than the children that it saves."""


class Pairs:
    """Two tenants with more devices than the pool has must share some: they must fit together and be allowed to."""

    def __init__(self, problem: Problem, rows: Sequence[Rows]) -> None:
        capacity = np.asarray(problem.pool.capacity_bytes)
        self._apart: dict[tuple[int, int], Bools] = {}
        self._shared: dict[tuple[int, int], Bools] = {}
        for i, j in combinations(range(len(rows)), 2):
            one, other = rows[i], rows[j]
            same_kind = one.kind[:, None] == other.kind[None, :]
            pool = problem.pool.devices_of_kind[one.kind][:, None]
            apart = ~same_kind | (one.num_devices[:, None] + other.num_devices[None, :] <= pool)
            active = np.maximum(one.active_bytes[:, None], other.active_bytes[None, :])
            both = one.resident_bytes[:, None] + other.resident_bytes[None, :] + active
            shared = apart | (both <= capacity[one.kind][:, None])
            for key, apart_, shared_ in (((i, j), apart, shared), ((j, i), apart.T, shared.T)):
                self._apart[key] = np.ascontiguousarray(apart_)
                self._shared[key] = np.ascontiguousarray(shared_)

    def possible(self, overlap: OverlapSet, one: int, other: int) -> Bools:
        """(rows of one, rows of other) Which two candidates fit beside or onto each other."""
        must_be_apart = (min(one, other), max(one, other)) in overlap.apart
        return (self._apart if must_be_apart else self._shared)[one, other]


class LatencyAside:
    """For one tenant the pairs of rows of which the better one lacks only latency to dominate the other.

    Where the rest of a stage takes longer anyway, that latency is free, and the other row can go.
    """

    def __init__(self, problem: Problem, tenant: int, rows: Rows) -> None:
        at = np.arange(len(rows))
        free = Rows(
            rows.seconds * 0.0,
            rows.num_devices,
            rows.resident_bytes,
            rows.active_bytes,
            rows.quantum,
            rows.kind,
            rows.layout,
            rows.index,
        )
        holds = Dominance(problem, tenant, free).over(at, at)
        np.fill_diagonal(holds, False)
        self.worse, self.better = np.nonzero(holds.T)
        self.mutual = holds[self.worse, self.better]
        self.starts = np.flatnonzero(np.diff(self.worse, prepend=-1))
        self.rows = rows

    def dominated(self, floors: Sequence[Floats], wanted: Bools) -> Bools:
        """(partial plans, rows) Rows that another one beats when each role's latency counts only above its floor."""
        found = np.zeros(wanted.shape, bool)
        if not len(self.worse) or len(self.worse) * len(wanted) > MOST_DOMINANCE_CELLS:
            return found
        holds = np.ones((len(wanted), len(self.worse)), bool)
        equal = np.ones((len(wanted), len(self.worse)), bool)
        for seconds, floor in zip(self.rows.seconds, floors, strict=True):
            above = np.maximum(seconds[None, :], np.broadcast_to(floor, len(wanted))[:, None])
            better, worse = above[:, self.better], above[:, self.worse]
            holds &= better <= worse
            equal &= better == worse
        # Of rows that are equal in everything that counts here, the first one stays.
        holds &= ~(equal & (self.mutual & (self.better > self.worse))[None, :])
        found[:, self.worse[self.starts]] = np.logical_or.reduceat(holds, self.starts, axis=1)
        return found


def rows_of(decided: Ints, order: Sequence[int]) -> dict[int, Ints]:
    """A block of partial plans (plans, tenants decided) as a column for every tenant."""
    return {tenant: decided[:, at] for at, tenant in enumerate(order[: decided.shape[1]])}
