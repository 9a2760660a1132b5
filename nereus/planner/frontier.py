"""The latency-resource frontier of one holder (paper, section 4.2): the candidates that no plan is better without.

A candidate dominates another if it is at least as good in everything that the search looks at: the latency of every role,
devices, resident, active and offloaded bytes, placement quantum, within one device kind. One of these left out loses optima.

Where a weight sync is priced by layout class, a slower candidate with a cheaper sync may still dominate, and a faster one
with a dearer sync does only if its latency counts in full:   sum over roles of max(0, slower by) + dearer by <= 0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nereus.planner.problem import Bools, Floats, Ints, Pool, Problem, Rows

CHUNK_ROWS = 256
"""Rows compared at a time: a few hundred keep the comparison tables of bytes inside the cache."""


def fitting(rows: Rows, pool: Pool) -> Bools:
    """(rows,) Which candidates can be placed at all when they have the pool to themselves."""
    capacity = np.asarray(pool.capacity_bytes, np.float64)
    return np.asarray(
        (rows.num_devices <= pool.devices_of_kind[rows.kind])
        & (rows.resident_bytes + rows.active_bytes <= capacity[rows.kind])
        & (rows.quantum <= pool.largest_node[rows.kind])
        & (rows.num_devices % rows.quantum == 0)
        & (rows.num_devices * rows.host_bytes <= pool.host_of_kind[rows.kind])
    )


def frontiers(problem: Problem, tables: Sequence[Rows], top: int) -> list[Rows]:
    """The frontier of every holder; small tables first: few layouts at one end of a weight sync tell fewer rows apart."""
    kept = list(tables)
    for holder in sorted(range(len(kept)), key=lambda i: (len(kept[i]), i)):
        kept[holder] = frontier(problem, holder, kept, top)
    return kept


def frontier(problem: Problem, holder: int, tables: Sequence[Rows], top: int) -> Rows:
    """The rows with fewer than `top` better shapes, and none better of their own shape: the K-skyband, fastest first.

    `tables` are the rows that are left of all holders: a weight sync counts only with the layouts at its other end.
    """
    rows = tables[holder].take(_best_first(tables[holder]))
    dominance = Dominance(problem, holder, rows, dearer(problem, holder, tables))
    if top == 1:
        return rows.take(_undominated(dominance))
    # The K best plans differ in shape, so of each shape the undominated rows stay, behind fewer than K other shapes.
    return rows.take(_skyband(dominance, _undominated(dominance, same_shape=True), top))


class Dominance:
    """Which rows of a sorted table are at least as good as which others."""

    def __init__(self, problem: Problem, holder: int, rows: Rows, dearer: Floats | None) -> None:
        self.rows = rows
        self.seconds = rows.seconds
        self.in_full = _counts_in_full(problem, holder)
        if self.in_full:
            self.seconds = rows.seconds.sum(0, keepdims=True)
        self.dearer = dearer
        self.columns = ("resident_bytes", "active_bytes", "quantum", *(("host_bytes",) if rows.host_bytes.any() else ()))

    def over(self, better: Ints, worse: Ints) -> Bools:
        """(better, worse) Whether a row dominates another; of equal rows the earlier one dominates."""
        rows, a, b = self.rows, better[:, None], worse[None, :]
        holds = rows.num_devices[a] <= rows.num_devices[b]
        for column in (getattr(rows, name) for name in self.columns):
            holds &= column[a] <= column[b]
        if len(rows) and rows.kind.any():
            holds &= rows.kind[a] == rows.kind[b]
        if self.dearer is None:
            for seconds in self.seconds:
                holds &= seconds[a] <= seconds[b]
        else:
            # For the few pairs that are left: it takes longer than all of the above.
            first, second = np.nonzero(holds)
            holds[first, second] = self._no_dearer(better[first], worse[second])
        return holds

    def strictly_over(self, better: Ints, worse: Ints) -> Bools:
        """Like `over`, without a row over itself or over an equal earlier one; both arguments are the same rows."""
        holds = self.over(better, worse)
        earlier = better[:, None] < worse[None, :]
        return np.asarray(holds & (earlier | ~holds.T) & (better[:, None] != worse[None, :]))

    def _no_dearer(self, a: Ints, b: Ints) -> Bools:
        assert self.dearer is not None
        slack = self.dearer[self.rows.layout[a], self.rows.layout[b]]
        slower = np.zeros(slack.shape)
        for seconds in self.seconds:
            by = seconds[a] - seconds[b]
            slower += by if self.in_full else np.maximum(by, 0.0)
        return np.asarray(slower + slack <= 0.0)


def _best_first(rows: Rows) -> Ints:
    """An order in which no row is dominated by a later one, except by an equal or, on an edge, a slower one."""
    total = rows.seconds.sum(0)
    keys = (rows.index, rows.host_bytes, rows.quantum, rows.active_bytes, rows.resident_bytes, rows.num_devices, total)
    return np.lexsort(keys)


def _undominated(dominance: Dominance, *, same_shape: bool = False) -> Ints:
    """The rows that none dominates, or none of their own shape; rows come in blocks, each against those kept so far."""
    rows, shape = np.arange(len(dominance.rows)), dominance.rows.shape
    kept = np.empty(0, np.int64)
    for start in range(0, len(rows), CHUNK_ROWS):
        block = rows[start : start + CHUNK_ROWS]
        holds = dominance.over(kept, block)
        if same_shape:
            holds &= shape[kept][:, None] == shape[block][None, :]
        block = _without_dominated(dominance, block[~holds.any(0)], shape if same_shape else None)
        kept = np.concatenate([kept, block])
    if dominance.dearer is not None and len(rows) > CHUNK_ROWS:
        # A slower row with a cheaper sync comes later and may dominate an earlier one.
        kept = _without_dominated(dominance, kept, shape if same_shape else None)
    return kept


def _without_dominated(dominance: Dominance, rows: Ints, shape: Ints | None) -> Ints:
    holds = dominance.strictly_over(rows, rows)
    if shape is not None:
        holds &= shape[rows][:, None] == shape[rows][None, :]
    return rows[~holds.any(0)]


def _skyband(dominance: Dominance, rows: Ints, top: int) -> Ints:
    """Those of the rows that fewer than `top` distinct shapes dominate."""
    shape = dominance.rows.shape
    by_shape = rows[np.argsort(shape[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(shape[by_shape], prepend=-1))
    kept = []
    for start in range(0, len(rows), CHUNK_ROWS):
        block = rows[start : start + CHUNK_ROWS]
        holds = dominance.over(by_shape, block)
        # Of equal rows the earlier one dominates, and none itself.
        equal = (by_shape[:, None] >= block[None, :]) & holds
        if equal.any():
            holds &= ~(equal & dominance.over(block, by_shape).T)
        shapes = np.logical_or.reduceat(holds, starts, axis=0).sum(0)
        kept.append(block[shapes < top])
    return np.concatenate(kept) if kept else rows


def _counts_in_full(problem: Problem, holder: int) -> bool:
    """Whether every second of this holder lengthens the step: a synchronous step in which nothing runs beside it."""
    if problem.asynchronous:
        return False
    return not problem.overlaps or all(len(problem.active_in(stage)) == 1 for stage in problem.holders[holder].stages)


def dearer(problem: Problem, holder: int, tables: Sequence[Rows]) -> Floats | None:
    """(classes, classes) By how many seconds the syncs of one layout class are dearer than another's, at the worst."""
    worst: Floats | None = None
    for edge in problem.edges:
        for end, other, seconds in ((edge.source, edge.target, edge.seconds), (edge.target, edge.source, edge.seconds.T)):
            if end == holder:
                there = seconds[:, np.unique(tables[other].layout)]
                by = (there[:, None, :] - there[None, :, :]).max(2)
                worst = by if worst is None else worst + by
    return worst
