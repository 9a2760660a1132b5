"""The leaves of the search: a candidate for every tenant, and whether devices can be found for them.

fine certificate  ->  fill (quick)  ->  relaxation  ->  integer program (exact on small pools);  remembered by need
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nereus.planner.certificate import Needs, may_fit_finely
from nereus.planner.found import Report
from nereus.planner.overlap import OverlapSet, Pair
from nereus.planner.packing import MOST_NODES, pack, relaxation_feasible
from nereus.planner.placement import Item, Placement, fill, initial_states
from nereus.planner.problem import Problem, Rows


class Placing:
    """Finds devices for whole plans."""

    def __init__(self, problem: Problem, rows: Sequence[Rows], report: Report) -> None:
        self.problem, self.rows, self.report = problem, rows, report
        self.pinned = {i: t.devices for i, t in enumerate(problem.tenants) if t.devices is not None}
        self.states = initial_states(problem.pool.nodes, self.pinned)
        self._known: dict[object, Placement | None] = {}

    def place(self, overlap: OverlapSet, chosen: tuple[int, ...]) -> Placement | None:
        """Devices for a row of every tenant, or None."""
        self.report.leaves += 1
        pool = self.problem.pool
        placed: dict[int, Placement] = {}
        for kind in range(len(pool.capacity_bytes)):
            of_kind = tuple(int(table.kind[row]) == kind for table, row in zip(self.rows, chosen, strict=True))
            nodes = [at for at, node in enumerate(pool.nodes) if node.kind == kind]
            found = self._on_kind(overlap.apart, chosen, of_kind, kind, nodes)
            if found is None:
                return None
            placed.update({at: (state,) for at, state in zip(nodes, found, strict=True)})
        return tuple(placed[at][0] for at in range(len(pool.nodes)))

    def _on_kind(
        self, apart: frozenset[Pair], chosen: tuple[int, ...], of_kind: tuple[bool, ...], kind: int, nodes: list[int]
    ) -> Placement | None:
        needs = self._needs(chosen).only(np.array(of_kind)[:, None])
        allowed = allowed_patterns(needs, of_kind, apart, self.problem.pool.capacity_bytes[kind])
        columns = (needs.num_devices, needs.quantum)
        key = (kind, of_kind, *(tuple(column[:, 0]) for column in columns), allowed)
        if key not in self._known:
            self._known[key] = self._look(needs, apart, of_kind, kind, nodes, allowed)
        return self._known[key]

    def _look(
        self,
        needs: Needs,
        apart: frozenset[Pair],
        of_kind: tuple[bool, ...],
        kind: int,
        nodes: list[int],
        allowed: tuple[bool, ...],
    ) -> Placement | None:
        states = tuple(self.states[at] for at in nodes)
        if not all(allowed[pattern] for state in states for pattern, _ in state):
            return None
        items = [
            Item(1 << i, int(needs.num_devices[i, 0]), int(needs.quantum[i, 0]))
            for i, here in enumerate(of_kind)
            if here and i not in self.pinned
        ]
        if not items:
            return states
        if not may_fit_finely(needs, apart, self.problem.pool, kind).all():
            return None
        found = fill(items, states, allowed)
        return found if found is not None else self._exactly(items, states, allowed)

    def _exactly(self, items: list[Item], states: Placement, allowed: tuple[bool, ...]) -> Placement | None:
        self.report.exact_placements += 1
        if not relaxation_feasible(items, states, allowed):
            return None
        found = pack(items, states, allowed)
        if found is None and len(states) > MOST_NODES:
            self.report.relaxed_not_placed += 1
        return found

    def _needs(self, chosen: tuple[int, ...]) -> Needs:
        pairs = list(zip(self.rows, chosen, strict=True))
        return Needs(
            np.array([[table.num_devices[row]] for table, row in pairs]),
            np.array([[table.resident_bytes[row]] for table, row in pairs]),
            np.array([[table.active_bytes[row]] for table, row in pairs]),
            np.array([[table.quantum[row]] for table, row in pairs]),
        )


def allowed_patterns(
    needs: Needs, of_kind: Sequence[bool], apart: frozenset[Pair], capacity_bytes: float
) -> tuple[bool, ...]:
    """By pattern, whether one device of a kind can host it: within memory, and no two tenants that must be apart."""
    resident = [float(x) for x in needs.resident_bytes[:, 0]]
    active = [float(x) for x in needs.active_bytes[:, 0]]
    barred = [1 << a | 1 << b for a, b in apart]
    found = []
    for pattern in range(1 << len(of_kind)):
        members = [i for i in range(len(of_kind)) if pattern >> i & 1]
        peak = sum(resident[i] for i in members) + max((active[i] for i in members), default=0.0)
        apart_enough = not any(pattern & pair == pair for pair in barred)
        found.append(all(of_kind[i] for i in members) and apart_enough and peak <= capacity_bytes)
    return tuple(found)
