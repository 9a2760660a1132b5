"""Lower bounds on L_step of plans that are decided for some holders only: the paper's dynamic program over GPU budgets.

For holders that run at the same time (a C_s of Eq. (1)), the devices that the decided ones leave bound the rest from below:

    devices left -> the smallest bottleneck that the undecided holders of a stage can share them out for

as a table per stage and set of holders, computed once per overlap set and read for all children of a block at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nereus.planner.kinds import KindBudgets, bottlenecks
from nereus.planner.overlap import OverlapSet, Pair, stage_seconds, step_seconds
from nereus.planner.problem import Bools, Edge, Floats, Ints, Problem, Rows, Stage

_Spent: TypeAlias = tuple[Bools, list[tuple[int | None, Stage, Floats]]]
"""Where the devices left are too few, and floors: of a holder in a stage, or of the stage."""


@dataclass(frozen=True, slots=True)
class Lower:
    """Bounds of the children of a block of partial plans: (partial plans, rows of the holder that is decided next)."""

    seconds: Floats
    """Of L_step; infinite where the budget or the memory of the pool is exceeded."""
    own: Mapping[tuple[int, Stage], Floats]
    """What they rest on: of each holder in each of its stages; (1, 1) where it is the same for all children."""


class Budget:
    """The bounds of one problem with its rows, shared by all overlap sets."""

    def __init__(self, problem: Problem, rows: Sequence[Rows]) -> None:
        self.problem, self.rows = problem, rows
        self.num_devices = problem.pool.num_devices
        self.least = [int(table.num_devices.min()) for table in rows]
        self.fastest = {
            (i, stage): rows[i].seconds[role].min() * np.ones((1, 1))
            for i, holder in enumerate(problem.holders)
            for role, stage in enumerate(holder.stages)
        }
        self.bytes = [table.num_devices * table.resident_bytes for table in rows]
        self.least_bytes = [float(column.min()) for column in self.bytes]
        self.by_kind = KindBudgets(problem, rows) if len(problem.pool.capacity_bytes) > 1 else None
        self.edges = [_EdgeSeconds(edge, rows) for edge in problem.edges]
        self._tables: dict[tuple[Stage, tuple[int, ...]], Floats] = {}
        self._undecided: dict[tuple[tuple[int, ...], int | None], _Spent] = {}
        self._alone: dict[tuple[frozenset[Pair], int], Floats] = {}

    def rows_alone(self, overlap: OverlapSet, holder: int) -> Floats:
        """(rows,) Bounds of the plans that have a row of a holder, with nothing else decided; remembered."""
        key = overlap.shared, holder
        if key not in self._alone:
            bounds = self.children(overlap, {}, holder).seconds[0]
            self._alone[key] = np.broadcast_to(bounds, len(self.rows[holder]))
        return self._alone[key]

    def children(self, overlap: OverlapSet, decided: Mapping[int, Ints], grown: int | None) -> Lower:
        """Bounds of partial plans, each with every row of holder `grown` added; without one, of the plans themselves.

        `decided` gives a row for every decided holder and partial plan.
        """
        seconds = self._own_seconds(decided, grown)
        floors: dict[Stage, Floats] = {}
        dead: Bools = np.zeros((1, 1), bool)
        for together in overlap.together:
            short, raised = self._spend(together, decided, grown)
            dead = dead | short
            for holder, of_stage, floor in raised:
                if holder is not None:
                    seconds[holder, of_stage] = np.maximum(seconds[holder, of_stage], floor)
                else:
                    floors[of_stage] = np.maximum(floors[of_stage], floor) if of_stage in floors else floor
        by_stage = {}
        for stage in self.problem.stages:
            length = stage_seconds(overlap, seconds, stage)
            by_stage[stage] = np.maximum(length, floors[stage]) if stage in floors else length
        edges: Floats = np.zeros((1, 1))
        for edge in self.edges:
            edges = edges + edge.least(decided, grown)
        total = step_seconds(self.problem, by_stage, edges)
        total = np.where(dead | (self._bytes(decided, grown) > self.problem.pool.total_bytes), np.inf, total)
        return Lower(total, seconds)

    def _own_seconds(self, decided: Mapping[int, Ints], grown: int | None) -> dict[tuple[int, Stage], Floats]:
        seconds = dict(self.fastest)
        for i, holder in enumerate(self.problem.holders):
            for role, stage in enumerate(holder.stages):
                if i in decided:
                    seconds[i, stage] = self.rows[i].seconds[role][decided[i]][:, None]
                elif i == grown:
                    seconds[i, stage] = self.rows[i].seconds[role][None, :]
        return seconds

    def _spend(self, together: tuple[int, ...], decided: Mapping[int, Ints], grown: int | None) -> _Spent:
        """What the devices left mean for holders that are apart; remembered where none of them is decided."""
        if not decided.keys().isdisjoint(together):
            return self._spent(together, decided, grown)
        key = together, grown if grown in together else None
        if key not in self._undecided:
            self._undecided[key] = self._spent(together, {}, key[1])
        return self._undecided[key]

    def _spent(self, together: tuple[int, ...], decided: Mapping[int, Ints], grown: int | None) -> _Spent:
        left: Ints = np.full((1, 1), self.num_devices)
        waiting = []
        for i in together:
            if i in decided:
                left = left - self.rows[i].num_devices[decided[i]][:, None]
            elif i == grown:
                left = left - self.rows[i].num_devices[None, :]
            else:
                waiting.append(i)
        dead, raised = self._left_for(waiting, left)
        if self.by_kind is None:
            return dead, raised
        short, more = self.by_kind.spend(together, decided, grown)
        return dead | short, raised + more

    def _left_for(self, waiting: Sequence[int], left: Ints) -> _Spent:
        """What the devices left mean for holders that are not decided yet."""
        spare = left - sum(self.least[i] for i in waiting)
        raised: list[tuple[int | None, Stage, Floats]] = []
        alone = {i: np.maximum(spare + self.least[i], -1) for i in waiting}
        for stage in self.problem.stages if waiting else ():
            here = tuple(i for i in waiting if (i, stage) in self.fastest)
            if len(here) > 1:
                room = np.maximum(spare + sum(self.least[i] for i in here), -1)
                raised.append((None, stage, self._table(stage, here)[room]))
            raised += [(i, stage, self._table(stage, (i,))[alone[i]]) for i in here]
        return np.asarray(spare < 0), raised

    def _table(self, stage: Stage, holders: tuple[int, ...]) -> Floats:
        """(devices + 2,) Smallest bottleneck of a stage by devices left for some holders; entry -1 is infinite."""
        if (stage, holders) not in self._tables:
            steps = [self._steps(stage, i) for i in holders]
            levels = np.unique(np.concatenate([levels for levels, _ in steps]))
            needed = np.zeros(len(levels))
            for own, devices in steps:
                at = np.searchsorted(own, levels, side="right") - 1
                needed += np.where(at >= 0, devices[np.maximum(at, 0)], np.inf)
            self._tables[stage, holders] = bottlenecks(levels, needed, self.num_devices)
        return self._tables[stage, holders]

    def _steps(self, stage: Stage, holder: int) -> tuple[Floats, Floats]:
        """Latencies of a holder, ascending, and the fewest devices that reach each."""
        seconds = self.rows[holder].seconds[self.problem.holders[holder].stages.index(stage)]
        order = np.argsort(seconds, kind="stable")
        return seconds[order], np.minimum.accumulate(self.rows[holder].num_devices[order]).astype(np.float64)

    def _bytes(self, decided: Mapping[int, Ints], grown: int | None) -> Floats:
        """Resident bytes of the whole pool that a plan needs at least."""
        needed: Floats = np.zeros((1, 1))
        for i, column in enumerate(self.bytes):
            if i in decided:
                needed = needed + column[decided[i]][:, None]
            elif i != grown:
                needed = needed + self.least_bytes[i]
        return needed if grown is None else needed + self.bytes[grown][None, :]

    def others(self, overlap: OverlapSet, lower: Lower, grown: int) -> list[Floats]:
        """(partial plans,) What each stage of a holder costs at least without it, where it runs beside all others; else 0.

        `lower` has the bounds of its rows.
        """
        return [self._beside(overlap, lower.own, stage, grown) for stage in self.problem.holders[grown].stages]

    def _beside(self, overlap: OverlapSet, seconds: Mapping[tuple[int, Stage], Floats], stage: Stage, grown: int) -> Floats:
        most: Floats = np.zeros(1)
        if (grown,) in overlap.chains[stage]:
            for chain in overlap.chains[stage]:
                if grown not in chain:
                    most = np.maximum(most, sum((seconds[i, stage].min(1) for i in chain), np.zeros(1)))
        if self.problem.asynchronous and stage is Stage.GENERATION and not most.any():
            rest = [s for s in self.problem.stages if s is not stage]
            return sum((stage_seconds(overlap, seconds, other).min(1) for other in rest), np.zeros(1))
        return most


class _EdgeSeconds:
    """The seconds of one weight sync for pairs of rows, and their minima over one side or both."""

    def __init__(self, edge: Edge, rows: Sequence[Rows]) -> None:
        self.source, self.target, self.seconds = edge.source, edge.target, edge.seconds
        self.sources, self.targets = rows[edge.source].layout, rows[edge.target].layout
        self.by_source = edge.seconds[:, np.unique(self.targets)].min(1)[self.sources]
        self.by_target = edge.seconds[np.unique(self.sources)].min(0)[self.targets]

    def least(self, decided: Mapping[int, Ints], grown: int | None) -> Floats:
        """(partial plans or 1, rows or 1) The sync at least."""
        source, target = decided.get(self.source), decided.get(self.target)
        if source is not None and target is not None:
            found = self.seconds[self.sources[source], self.targets[target]][:, None]
        elif source is not None and grown == self.target:
            found = self.seconds[self.sources[source][:, None], self.targets[None, :]]
        elif target is not None and grown == self.source:
            found = self.seconds[self.sources[None, :], self.targets[target][:, None]]
        elif source is not None:
            found = self.by_source[source][:, None]
        elif target is not None:
            found = self.by_target[target][:, None]
        elif grown == self.source:
            found = self.by_source[None, :]
        elif grown == self.target:
            found = self.by_target[None, :]
        else:
            found = self.by_source.min() * np.ones((1, 1))
        return np.asarray(found)
