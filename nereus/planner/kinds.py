"""Budgets of each device kind: a pool of several kinds bounds plans by more than its number of devices.

Holders that must be apart and are of one kind share out the devices of that kind. What the decided ones leave of each kind
bounds the others from below: alone by the best kind, together by the best way to share the kinds out among them.

    devices left of a kind -> the smallest bottleneck that some holders of that kind can share them out for
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from nereus.planner.problem import Bools, Floats, Ints, Problem, Rows, Stage

Raised = list[tuple[int | None, Stage, Floats]]
"""Floors: of a holder in a stage, or (None) of the stage."""


class KindBudgets:
    """The budgets of a problem with its rows, shared by all overlap sets."""

    def __init__(self, problem: Problem, rows: Sequence[Rows]) -> None:
        self.problem, self.rows, self.devices = problem, rows, problem.pool.devices_of_kind
        self._tables: dict[tuple[Stage, tuple[int, ...], int], Floats] = {}

    def spend(self, together: tuple[int, ...], decided: Mapping[int, Ints], grown: int | None) -> tuple[Bools, Raised]:
        """Where devices of some kind are too few, and what those left mean for the holders that are not decided yet."""
        waiting = [i for i in together if i not in decided and i != grown]
        left = [self._left(kind, together, decided, grown) for kind in range(len(self.devices))]
        dead = np.logical_or.reduce([part < 0 for part in left])
        return dead, list(self._floors(waiting, [np.maximum(part, -1) for part in left]))

    def _left(self, kind: int, together: tuple[int, ...], decided: Mapping[int, Ints], grown: int | None) -> Ints:
        """(partial plans or 1, rows or 1) Devices of a kind that decided holders do not have."""
        left: Ints = np.full((1, 1), self.devices[kind])
        for i in together:
            used = self.rows[i].num_devices * (self.rows[i].kind == kind)
            if i in decided:
                left = left - used[decided[i]][:, None]
            elif i == grown:
                left = left - used[None, :]
        return left

    def _floors(self, waiting: Sequence[int], left: Sequence[Ints]) -> Iterator[tuple[int | None, Stage, Floats]]:
        for stage in self.problem.stages:
            here = tuple(i for i in waiting if stage in self.problem.holders[i].stages)
            for i in here:
                yield i, stage, self._bottleneck(stage, (i,), left)
            if len(here) > 1:
                yield None, stage, self._bottleneck(stage, here, left)

    def _bottleneck(self, stage: Stage, holders: tuple[int, ...], left: Sequence[Ints]) -> Floats:
        """The smallest bottleneck over all ways to give each holder a kind."""
        best: Floats | None = None
        for kinds in product(range(len(left)), repeat=len(holders)):
            longest: Floats = np.zeros((1, 1))
            for kind in set(kinds):
                own = tuple(i for i, of in zip(holders, kinds, strict=True) if of == kind)
                longest = np.maximum(longest, self._table(stage, own, kind)[left[kind]])
            best = longest if best is None else np.minimum(best, longest)
        assert best is not None
        return best

    def _table(self, stage: Stage, holders: tuple[int, ...], kind: int) -> Floats:
        """(devices of the kind + 2,) Smallest bottleneck of holders of a kind by devices left; entry -1 is infinite."""
        key = stage, holders, kind
        if key not in self._tables:
            steps = [self._steps(stage, i, kind) for i in holders]
            levels = np.unique(np.concatenate([levels for levels, _ in steps]))
            needed = np.zeros(len(levels))
            for own, devices in steps:
                at = np.searchsorted(own, levels, side="right") - 1
                needed += np.where(at >= 0, np.append(devices, np.inf)[at], np.inf)
            self._tables[key] = bottlenecks(levels, needed, int(self.devices[kind]))
        return self._tables[key]

    def _steps(self, stage: Stage, holder: int, kind: int) -> tuple[Floats, Floats]:
        """Latencies of a holder on a kind, ascending, and the fewest devices that reach each."""
        rows = self.rows[holder].take(self.rows[holder].kind == kind)
        seconds = rows.seconds[self.problem.holders[holder].stages.index(stage)]
        order = np.argsort(seconds, kind="stable")
        return seconds[order], np.minimum.accumulate(rows.num_devices[order]).astype(np.float64)


def bottlenecks(levels: Floats, needed: Floats, num_devices: int) -> Floats:
    """(devices + 2,) The lowest level by devices left, infinite where there is none, and as the last entry.

    `levels` ascend; `needed` devices reach each, the fewer the higher it is.
    """
    firsts = np.minimum(needed[::-1], num_devices + 1).astype(np.int64)
    spans = np.diff(firsts, prepend=0, append=num_devices + 1)
    return np.append(np.repeat(np.append(np.inf, levels[::-1]), spans), np.inf)
