"""Depth-first branch and bound over the holders, a block of partial plans at a time.

    block of partial plans  x  rows of the next holder
        -> bounds (budgets, memory of the pool)  -> pairs  -> dominance where latency is free  -> sorted by bound
        -> certificates  -> blocks, small ones first so that a good plan is found early  -> the next holder
    whole plans, fastest first  -> placement

Every step works on arrays over the block, so that a tree of thousands of partial plans costs a few dozen array operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nereus.planner.budget import Budget
from nereus.planner.certificate import Needs, may_fit
from nereus.planner.found import Best, Solution
from nereus.planner.overlap import OverlapSet, Pair, swapped
from nereus.planner.pairs import LatencyAside, Pairs, rows_of
from nereus.planner.placing import Placing
from nereus.planner.problem import Floats, Ints, Problem, Rows, Stage

FIRST_BLOCK, BLOCK_GROWTH, LARGEST_BLOCK = 1, 16, 256
"""Partial plans of the first block of a level, by what blocks grow, and the most: memory stays at a few megabytes."""

CERTIFIED_AT_ONCE = 512
"""Partial plans: a call for fewer takes as long, and most of tens of thousands lie above the bound once a plan is found."""


class Tree:
    """The search over the rows that are left of every holder."""

    def __init__(
        self, problem: Problem, rows: Sequence[Rows], placing: Placing, pairs_of_twins: Sequence[Pair], best: Best
    ) -> None:
        self.problem, self.rows, self.placing, self.best = problem, rows, placing, best
        self.order = decision_order(problem)
        self.budget = Budget(problem, rows)
        self.pairs = Pairs(problem, rows)
        self.twins = pairs_of_twins
        self.latency_aside = [LatencyAside(problem, i, rows) for i in range(len(rows))] if best.top == 1 else None
        self.least = [tuple(column.min() for column in _needed(table)) for table in rows]

    def search(self, overlap: OverlapSet) -> None:
        """Look for all wanted plans of one overlap set."""
        self._grow(overlap, np.zeros((1, 0), np.int64))

    def _grow(self, overlap: OverlapSet, decided: Ints) -> None:
        level = decided.shape[1]
        holder = self.order[level]
        self.placing.report.tree_nodes += len(decided)
        columns = rows_of(decided, self.order)
        lower = self.budget.children(overlap, columns, holder)
        shape = (len(decided), len(self.rows[holder]))
        seconds = np.broadcast_to(lower.seconds, shape)
        wanted = seconds < self.best.bound
        for other, column in columns.items():
            wanted = wanted & self.pairs.possible(overlap, other, column, holder)
            if self._mirrors(overlap, holder, other):
                wanted = wanted & (np.arange(shape[1])[None, :] >= column[:, None])
        if self.latency_aside is not None and level + 1 < len(self.order) and wanted.any():
            floors = self.budget.others(overlap, lower, holder)
            wanted = wanted & ~self.latency_aside[holder].dominated(floors, wanted)
        plans, added = np.nonzero(wanted)
        bounds = seconds[plans, added]
        order = np.argsort(bounds, kind="stable")
        self._descend(overlap, np.column_stack([decided[plans], added])[order], bounds[order])

    def _descend(self, overlap: OverlapSet, grown: Ints, bounds: Floats) -> None:
        """Go on with partial plans, the best ones first; certificates are asked for as many as it comes to."""
        start, size = 0, FIRST_BLOCK if self.best.worst == np.inf else FIRST_BLOCK * BLOCK_GROWTH
        ready = np.empty(0, np.int64)
        while True:
            while len(ready) < size and start < len(grown) and bounds[start] < self.best.bound:
                ready = np.concatenate([ready, start + self._may_fit(overlap, grown[start : start + CERTIFIED_AT_ONCE])])
                start += CERTIFIED_AT_ONCE
            block, ready = ready[:size], ready[size:]
            block = block[bounds[block] < self.best.bound]
            if not len(block):
                return
            if grown.shape[1] == len(self.order):
                self._place(overlap, grown[block], bounds[block])
            else:
                self._grow(overlap, grown[block])
            size = min(size * BLOCK_GROWTH, LARGEST_BLOCK)

    def _place(self, overlap: OverlapSet, grown: Ints, bounds: Floats) -> None:
        """Place whole plans, fastest first."""
        columns = np.empty_like(grown)
        columns[:, self.order] = grown
        for chosen, seconds in zip(columns, bounds, strict=True):
            if seconds >= self.best.bound:
                return
            shape = tuple((int(t.layout[r]), int(t.num_devices[r])) for t, r in zip(self.rows, chosen, strict=True))
            if not self.best.wants(float(seconds), shape):
                continue
            needs, kinds = self._needs(dict(enumerate(chosen[:, None])), 1)
            placement = self.placing.place(overlap.apart, needs, kinds[:, 0])
            if placement is not None:
                rows = tuple(int(table.index[row]) for table, row in zip(self.rows, chosen, strict=True))
                self.best.add(Solution(float(seconds), rows, shape, placement))

    def _may_fit(self, overlap: OverlapSet, grown: Ints) -> Ints:
        """Numbers of the partial plans that no certificate refutes."""
        kept = np.ones(len(grown), bool)
        if grown.shape[1] == 1:
            return np.flatnonzero(kept)  # one holder alone was looked at before the frontier
        pool = self.problem.pool
        columns = rows_of(grown, self.order)
        needs, kinds = self._needs(columns, len(grown))
        for kind in range(len(pool.capacity_bytes)):
            of_kind = needs if len(pool.capacity_bytes) == 1 else needs.only(kinds == kind)
            kept &= may_fit(of_kind, overlap.apart, pool, kind)
        return np.flatnonzero(kept)

    def _needs(self, columns: dict[int, Ints], count: int) -> tuple[Needs, Ints]:
        """What decided holders need, and undecided ones at least; and their kinds, -1 where that is open."""
        shape = (len(self.rows), count)
        devices, quantum, kinds = np.empty(shape, np.int64), np.empty(shape, np.int64), np.full(shape, -1)
        resident, active, host = np.empty(shape), np.empty(shape), np.empty(shape)
        for i, table in enumerate(self.rows):
            needed: Sequence[npt.ArrayLike] = self.least[i]
            if i in columns:
                needed = [column[columns[i]] for column in _needed(table)]
                kinds[i] = table.kind[columns[i]]
            devices[i], resident[i], active[i], quantum[i], host[i] = needed
        return Needs(devices, resident, active, quantum, host), kinds

    def _mirrors(self, overlap: OverlapSet, holder: int, other: int) -> bool:
        """Whether plans with these two swapped are the same plan: then one order of their rows is enough."""
        pair = (min(holder, other), max(holder, other))
        return pair in self.twins and swapped(overlap.shared, *pair) == tuple(sorted(overlap.shared))


def _needed(table: Rows) -> tuple[Ints | Floats, ...]:
    """The columns of a table that decide whether candidates can be placed, in the order of `Needs`."""
    return table.num_devices, table.resident_bytes, table.active_bytes, table.quantum, table.host_bytes


def decision_order(problem: Problem) -> list[int]:
    """Which holder is decided when: several roles first, then training, generation, inference.

    In asynchronous execution generation is first: how many devices it takes decides most of the rest.
    """

    def key(holder: int) -> tuple[bool, bool, int, int, int]:
        stages = problem.holders[holder].stages
        generates = problem.asynchronous and Stage.GENERATION in stages
        return not generates, stages == (Stage.INFERENCE,), -len(stages), -max(stages), holder

    return sorted(range(len(problem.holders)), key=key)
