"""Which replica an Extend reads: the one that is free first, near ones before far ones; newborn ones copy on.

Replicas on the same nodes, rank by rank, are as far from a slot as each other, so a slot looks at one of each kind: a
thousand devices have a few hundred replicas and as many slots.
"""

from __future__ import annotations

from heapq import heapify, heappush

from nereus.emu.primitives import Endpoints
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from nereus.layout.moves import NodeOf

Nodes = tuple[int | None, ...]
"""The node of each rank."""


class Sources:
    """Replicas to copy from: how often each was read, and which are on the same nodes, rank by rank."""

    def __init__(self, sources: list[Emu], node_of: NodeOf) -> None:
        self._node_of = node_of
        self._known: list[Emu] = []
        self._on: dict[EndpointId, set[int]] = {}
        self._by_nodes: dict[Nodes, list[tuple[int, int]]] = {}
        for emu in sources:
            self.add(emu, 0)

    def add(self, emu: Emu, free_at: int) -> None:
        index = len(self._known)
        self._known.append(emu)
        for endpoint in emu.endpoints:
            self._on.setdefault(endpoint, set()).add(index)
        heappush(self._by_nodes.setdefault(self._nodes(emu.endpoints), []), (free_at, index))

    def can_fill(self, slot: Endpoints) -> bool:
        """Whether some replica is disjoint from a slot."""
        return len(self._overlapping(slot)) < len(self._known)

    def take(self, slot: Endpoints) -> tuple[Emu, int]:
        """The replica that is free first, near before far, and when it is free again, in copies."""
        nodes, overlapping = self._nodes(slot), self._overlapping(slot)
        best: tuple[tuple[int, int, int], Nodes] | None = None
        for theirs, heap in self._by_nodes.items():
            able = heap[:1] if heap and heap[0][1] not in overlapping else [c for c in heap if c[1] not in overlapping]
            if able:
                free_at, index = min(able)
                far = sum(a != b for a, b in zip(theirs, nodes, strict=True))
                best = min(best or ((free_at, far, index), theirs), ((free_at, far, index), theirs), key=lambda c: c[0])
        assert best is not None
        (free_at, _, index), theirs = best
        heap = self._by_nodes[theirs]
        heap.remove((free_at, index))
        heapify(heap)
        heappush(heap, (free_at + 1, index))
        return self._known[index], free_at + 1

    def _nodes(self, endpoints: Endpoints) -> Nodes:
        return tuple(self._node_of.get(endpoint) for endpoint in endpoints)

    def _overlapping(self, slot: Endpoints) -> set[int]:
        return set[int]().union(*(self._on.get(endpoint, ()) for endpoint in slot))
