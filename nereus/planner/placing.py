"""The leaves of the search: a candidate for every holder, and whether devices can be found for them.

fine certificate  ->  fill (quick)  ->  relaxation  ->  integer program (exact on small pools);  remembered by need
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nereus.planner.certificate import Needs, allowed_patterns, may_fit_finely
from nereus.planner.found import Report
from nereus.planner.overlap import Pair
from nereus.planner.packing import MOST_NODES, pack, relaxation_feasible
from nereus.planner.placement import Item, NodeState, Placement, Site, carried_out, fill, initial_states
from nereus.planner.problem import Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class _OfKind:
    """The nodes of one device kind before anything but pinned holders is placed."""

    numbers: tuple[int, ...]
    sites: tuple[Site, ...]
    """With nothing offloaded: without a host."""
    groups: Mapping[Site, int]
    host_bytes: tuple[float, ...]
    """Of each node."""

    @classmethod
    def of(cls, problem: Problem, states: Placement, kind: int) -> _OfKind:
        numbers = tuple(at for at, node in enumerate(problem.pool.nodes) if node.kind == kind)
        own = tuple((states[at], 0.0) for at in numbers)
        hosts = tuple(problem.pool.nodes[at].host_bytes for at in numbers)
        return cls(numbers, own, dict(sorted(Counter(own).items())), hosts)

    def with_hosts(self, host_bytes: Floats) -> tuple[Site, ...] | None:
        """The sites with their hosts, less what pinned holders offload; None where a host is too small for those.

        `host_bytes` has what each holder offloads for one device.
        """
        found = []
        for (state, _), left in zip(self.sites, self.host_bytes, strict=True):
            for pattern, count in state:
                left -= count * sum(float(size) for i, size in enumerate(host_bytes) if pattern >> i & 1)
            if left < 0:
                return None
            found.append((state, left))
        return tuple(found)


class Placing:
    """Finds devices for whole plans."""

    def __init__(self, problem: Problem, report: Report) -> None:
        self.problem, self.report = problem, report
        self.pinned = {i: t.devices for i, t in enumerate(problem.holders) if t.devices is not None}
        states = initial_states(problem.pool.nodes, self.pinned)
        self.kinds = [_OfKind.of(problem, states, kind) for kind in range(len(problem.pool.capacity_bytes))]
        self._known: dict[object, Placement | None] = {}

    def place(self, apart: frozenset[Pair], needs: Needs, kinds: Ints) -> Placement | None:
        """Devices for one combination of candidates, whose device kinds are (holders,); or None."""
        self.report.leaves += 1
        placed: dict[int, NodeState] = {}
        for kind, nodes in enumerate(self.kinds):
            of_kind = kinds == kind
            found = self._on_kind(apart, needs.only(of_kind[:, None]), tuple(of_kind.tolist()), kind)
            if found is None:
                return None
            placed.update(zip(nodes.numbers, found, strict=True))
        return tuple(placed[at] for at in range(len(placed)))

    def _on_kind(self, apart: frozenset[Pair], needs: Needs, of_kind: tuple[bool, ...], kind: int) -> Placement | None:
        allowed = allowed_patterns(needs, of_kind, apart, self.problem.pool.capacity_bytes[kind])
        columns = (needs.num_devices, needs.quantum, needs.host_bytes)
        key = (kind, of_kind, *(tuple(column[:, 0].tolist()) for column in columns), allowed)
        if key not in self._known:
            self._known[key] = self._look(needs, apart, of_kind, kind, allowed)
        return self._known[key]

    def _look(
        self, needs: Needs, apart: frozenset[Pair], of_kind: tuple[bool, ...], kind: int, allowed: tuple[bool, ...]
    ) -> Placement | None:
        nodes = self.kinds[kind]
        if not all(allowed[pattern] for state, _ in nodes.groups for pattern, _ in state):
            return None
        sites, groups = nodes.sites, nodes.groups
        if needs.host_bytes.any():
            hosted = nodes.with_hosts(needs.host_bytes[:, 0])
            if hosted is None:
                return None
            sites, groups = hosted, dict(sorted(Counter(hosted).items()))
        items = [
            Item(1 << i, int(needs.num_devices[i, 0]), int(needs.quantum[i, 0]), float(needs.host_bytes[i, 0]))
            for i, here in enumerate(of_kind)
            if here and i not in self.pinned
        ]
        if not items:
            return tuple(state for state, _ in sites)
        if not may_fit_finely(needs, apart, self.problem.pool, kind).all():
            return None
        moves = fill(items, groups, allowed)
        return carried_out(sites, moves) if moves is not None else self._exactly(items, sites, allowed)

    def _exactly(self, items: list[Item], sites: Sequence[Site], allowed: tuple[bool, ...]) -> Placement | None:
        self.report.exact_placements += 1
        if not relaxation_feasible(items, sites, allowed):
            return None
        found = pack(items, sites, allowed)
        if found is None and len(sites) > MOST_NODES:
            self.report.relaxed_not_placed += 1
        return found
