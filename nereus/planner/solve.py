"""The exact plan search (Eq. (1); paper, section 4.2): the K best plans of a problem, in order of L_step.

    rows  -> those that fit alone  -> those below a ceiling on L_step  -> frontier  -> branch and bound per overlap set

The ceiling starts a little above a lower bound and rises until enough plans lie under it; everything that can't be under
it is dropped before anything quadratic is done. Large tables are searched twice: first powers of two and their threefolds
as device counts alone, whose plans then are the ceiling for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nereus.planner.branch import Tree, decision_order
from nereus.planner.budget import Budget
from nereus.planner.found import Best, Report, Solution
from nereus.planner.frontier import fitting, frontiers
from nereus.planner.overlap import OverlapSet, overlap_sets, swapped, twins
from nereus.planner.placing import Placing
from nereus.planner.problem import Bools, Floats, Ints, Problem, Rows, Stage

CEILINGS = (1.025, 1.06, 1.2, float("inf"))
"""Multiples of the lower bound tried in turn: most optima lie within 3 % of it; one that is too low costs little."""

COARSE_ROWS = 20_000
"""From so many rows on, a coarse grid of device counts is searched first; below, two searches cost more than one saves."""

BESIDE_ROWS = 2_000
"""From so many rows on, those beside generation are bounded before the frontier; below, that takes longer than it saves."""

MOST_BESIDE = 50_000
"""Pairs of a generation row and another one that are bounded together: more take longer than the rows dropped would."""


def solve(
    problem: Problem, top: int = 1, clock: Callable[[], float] = lambda: 0.0, known: Sequence[Solution] = ()
) -> tuple[tuple[Solution, ...], Report]:
    """The `top` best plans that differ in the shape of some holder, fastest first; none where nothing fits.

    `known`: plans that were found in other tables of the same job, which compete; what is slower is not looked for.
    Exact for pools of at most 12 nodes of a kind, and above whenever `Report.relaxed_not_placed` is 0. Deterministic.
    """
    start = clock()
    report = Report(rows=sum(len(holder.rows) for holder in problem.holders))
    best = Best(top, list(known))
    fit = [holder.rows.take(fitting(holder.rows, problem.pool)) for holder in problem.holders]
    if all(len(rows) for rows in fit):
        _Search(problem, best, report).run(fit)
    report.seconds = clock() - start
    return tuple(best.solutions), report


class _Search:
    def __init__(self, problem: Problem, best: Best, report: Report) -> None:
        self.problem, self.best, self.report = problem, best, report
        self.placing = Placing(problem, report)
        self.twins = twins(problem) if best.top == 1 else ()
        self.overlaps = [
            overlap
            for overlap in overlap_sets(problem)
            if all(swapped(overlap.shared, *pair) >= tuple(sorted(overlap.shared)) for pair in self.twins)
        ]
        report.overlap_sets = len(self.overlaps)

    def run(self, rows: Sequence[Rows]) -> None:
        if sum(len(table) for table in rows) > COARSE_ROWS:
            coarse = [table.take(_coarse(table.num_devices)) for table in rows]
            if all(len(table) for table in coarse):
                self._raise_ceiling(coarse)
        self._raise_ceiling(rows)

    def _raise_ceiling(self, rows: Sequence[Rows]) -> None:
        """Find the best plans of some rows: below a low ceiling first, then below higher ones."""
        budget, first = Budget(self.problem, rows), decision_order(self.problem)[0]
        roots = [float(budget.rows_alone(overlap, first).min()) for overlap in self.overlaps]
        known = self.best.worst
        for factor in CEILINGS:
            self.best.ceiling = min(roots) * factor
            if known < self.best.ceiling:
                # Plans of the coarse search are a ceiling already.
                self.best.ceiling = float("inf")
            below = {at: root for at, root in enumerate(roots) if root < self.best.bound}
            if below:
                self._below_ceiling(rows, budget, below)
            if self.best.worst < float("inf") and self.best.worst <= self.best.ceiling:
                break
        self.best.ceiling = float("inf")

    def _below_ceiling(self, rows: Sequence[Rows], budget: Budget, roots: Mapping[int, float]) -> None:
        """Search the plans below the bound, of which every row has to be below it too, in these overlap sets."""
        overlaps = [self.overlaps[at] for at in sorted(roots, key=lambda at: (roots[at], at))]
        alive = [table.take(self._row_bounds(budget, overlaps, i) < self.best.bound) for i, table in enumerate(rows)]
        if self.problem.asynchronous and all(map(len, alive)) and sum(map(len, alive)) >= BESIDE_ROWS:
            alive = self._beside_generation(alive, overlaps)
        if not all(len(table) for table in alive):
            return
        kept = frontiers(self.problem, alive, self.best.top)
        self.report.frontier_rows = tuple(len(table) for table in kept)
        tree = Tree(self.problem, kept, self.placing, self.twins, self.best)
        for overlap in overlaps:
            tree.search(overlap)

    def _row_bounds(self, budget: Budget, overlaps: Sequence[OverlapSet], holder: int) -> Floats:
        """(rows,) For every row of a holder a lower bound of the plans that have it, over these overlap sets."""
        return np.asarray(np.minimum.reduce([budget.rows_alone(overlap, holder) for overlap in overlaps]))

    def _beside_generation(self, rows: list[Rows], overlaps: Sequence[OverlapSet]) -> list[Rows]:
        """Drop rows that are too slow beside each row of generation, with the devices that it leaves."""
        generating = self.problem.active_in(Stage.GENERATION)[:1]
        budget, kept = Budget(self.problem, rows), list(rows)
        for holder in generating:
            decided = {holder: np.arange(len(rows[holder]))}
            for other, table in enumerate(rows):
                if other != holder and len(rows[holder]) * len(table) <= MOST_BESIDE:
                    bounds = [budget.children(overlap, decided, other).seconds.min(0) for overlap in overlaps]
                    kept[other] = table.take(np.broadcast_to(np.minimum.reduce(bounds), len(table)) < self.best.bound)
        return kept


def _coarse(num_devices: Ints) -> Bools:
    """Powers of two and three times them: with these, holders that must be apart can share a pool out."""
    thirds = np.where(num_devices % 3 == 0, num_devices // 3, num_devices)
    return np.asarray(thirds & (thirds - 1) == 0)
