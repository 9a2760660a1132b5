"""The exact plan search (Eq. (1); paper, section 4.2): the K best plans of a problem, in order of L_step.

    rows  -> those that fit alone  -> those below a ceiling on L_step  -> frontier  -> branch and bound per overlap set

The ceiling starts a little above a lower bound and rises until enough plans lie under it; everything that can't be under
it is dropped before anything quadratic is done. Large tables are searched twice: first power-of-two device counts alone,
whose plans then are the ceiling for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nereus.planner.branch import Tree
from nereus.planner.budget import Budget
from nereus.planner.found import Best, Report, Solution
from nereus.planner.frontier import fitting, frontier
from nereus.planner.overlap import loosest, overlap_sets, swapped, twins
from nereus.planner.problem import Floats, Problem, Rows

CEILINGS = (1.1, 2.0, float("inf"))
"""Multiples of the lower bound tried in turn: most optima lie within a tenth of it, tight pools within twice."""

COARSE_ROWS = 20_000
"""From so many rows on, power-of-two device counts are searched first; below, two searches cost more than one saves."""


def solve(problem: Problem, top: int = 1, clock: Callable[[], float] = lambda: 0.0) -> tuple[tuple[Solution, ...], Report]:
    """The `top` best plans that differ in the shape of some tenant, fastest first; none where nothing fits.

    Exact for pools of at most 12 nodes of a kind, and above whenever `Report.relaxed_not_placed` is 0. Deterministic.
    """
    start = clock()
    report = Report(rows=sum(len(tenant.rows) for tenant in problem.tenants))
    best = Best(top)
    fit = [tenant.rows.take(fitting(tenant.rows, problem.pool)) for tenant in problem.tenants]
    if all(len(rows) for rows in fit):
        _Search(problem, best, report).run(fit)
    report.seconds = clock() - start
    return tuple(best.solutions), report


class _Search:
    def __init__(self, problem: Problem, best: Best, report: Report) -> None:
        self.problem, self.best, self.report = problem, best, report
        self.twins = twins(problem) if best.top == 1 else ()
        self.overlaps = [
            overlap
            for overlap in overlap_sets(problem)
            if all(swapped(overlap.shared, *pair) >= tuple(sorted(overlap.shared)) for pair in self.twins)
        ]
        report.overlap_sets = len(self.overlaps)

    def run(self, rows: Sequence[Rows]) -> None:
        if sum(len(table) for table in rows) > COARSE_ROWS:
            coarse = [table.take(table.num_devices & (table.num_devices - 1) == 0) for table in rows]
            if all(len(table) for table in coarse):
                self._raise_ceiling(coarse)
        self._raise_ceiling(rows)

    def _raise_ceiling(self, rows: Sequence[Rows]) -> None:
        bounds = self._row_bounds(rows)
        base = max(float(of_rows.min()) for of_rows in bounds)
        for factor in CEILINGS:
            self.best.ceiling = base * factor
            self._below_ceiling(rows, bounds)
            if self.best.worst < self.best.ceiling:
                break
        self.best.ceiling = float("inf")

    def _row_bounds(self, rows: Sequence[Rows]) -> list[Floats]:
        """For every row a lower bound of the plans that have it."""
        least = loosest(self.problem)
        budget = Budget(self.problem, rows)
        return [np.broadcast_to(budget.children(least, {}, i).seconds[0], len(table)) for i, table in enumerate(rows)]

    def _below_ceiling(self, rows: Sequence[Rows], bounds: Sequence[Floats]) -> None:
        alive = [table.take(of_rows < self.best.bound) for table, of_rows in zip(rows, bounds, strict=True)]
        if not all(len(table) for table in alive):
            return
        kept = [frontier(self.problem, i, table, self.best.top) for i, table in enumerate(alive)]
        self.report.frontier_rows = tuple(len(table) for table in kept)
        tree = Tree(self.problem, kept, self.twins, self.best, self.report)
        roots = sorted(((tree.root(overlap), at) for at, overlap in enumerate(self.overlaps)))
        for lower, at in roots:
            if lower < self.best.bound:
                tree.search(self.overlaps[at])
