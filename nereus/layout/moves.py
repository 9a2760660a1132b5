"""The fewest bytes that turn one catalog into another.

A move is the intersection of a target box with a source box, for all tensors of a family at once. What the target endpoint
already holds, in whichever unit, is copied locally; the rest is fetched once, from the least loaded replica, those on the
same node first. With relays, what several endpoints of one node lack crosses to that node once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nereus.errors import StoreError
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, Site, Tensors, UnitId, by_number
from nereus.layout.tensors import CanonicalTensor, TensorRef

NodeOf = Mapping[EndpointId, int]
"""The node of each endpoint; those that are not in it count as being on one node of their own."""

Holders = Sequence[tuple[Site, Box]]


class Move(NamedTuple):
    """Copy `box` of each of `tensors` from one site to another. Within an endpoint it is a local copy, never an alias."""

    tensors: Tensors
    """The target's tensors, all of one shape and dtype: theirs is the dtype that travels."""
    box: Box
    source: Site
    target: Site
    wave: int = 0
    """Moves of a later wave read what those of an earlier one have brought."""

    @property
    def is_local(self) -> bool:
        return self.source.endpoint == self.target.endpoint

    @property
    def num_bytes(self) -> int:
        return self.box.volume * self.tensors[0].item_bytes * len(self.tensors)


Reach = Callable[[Site, Site], bool]
"""Whether a target may fetch from a source on another endpoint."""


def minimal_moves(
    sources: Catalog,
    targets: Catalog,
    node_of: NodeOf | None = None,
    *,
    reach: Reach | None = None,
    relay: bool = False,
) -> tuple[Move, ...]:
    """The moves that fill every target box exactly once and send nothing that is resident.

    Tensors are matched by reference, so that a weight sync may change the dtype on the way. With `relay`, a target that has
    received a box from another node passes it on to the others on its own. Raises StoreError, with the tensor and the box,
    if a target element has no source.
    """
    family_of = {tensor.ref: index for index, family in enumerate(sources.families) for tensor in family.tensors}
    planner = _Planner(node_of or {}, reach, relay)
    by_endpoint: dict[int, dict[EndpointId, Holders]] = {}
    for tensors, wanted in targets.families:
        for index, alike in _split(tensors, family_of):
            holders = sources.families[index].holders if index is not None else ()
            if index is not None and index not in by_endpoint:
                by_endpoint[index] = _by_endpoint(holders)
            resident = by_endpoint[index] if index is not None else {}
            planner.fill(alike, wanted, holders, resident)
    return tuple(planner.moves)


def overlap_bytes(sources: Catalog, targets: Catalog) -> dict[tuple[EndpointId, EndpointId], int]:
    """Bytes that each source endpoint holds of what each target endpoint needs, where that is anything."""
    family_of = {tensor.ref: index for index, family in enumerate(sources.families) for tensor in family.tensors}
    found: dict[tuple[EndpointId, EndpointId], int] = defaultdict(int)
    for tensors, wanted in targets.families:
        for index, alike in _split(tensors, family_of):
            size = alike[0].item_bytes * len(alike)
            for source, have in sources.families[index].holders if index is not None else ():
                for target, box in wanted:
                    common = box.intersect(have)
                    if common is not None:
                        found[source.endpoint, target.endpoint] += common.volume * size
    return found


def _split(tensors: Tensors, family_of: Mapping[TensorRef, int]) -> list[tuple[int | None, Tensors]]:
    """The tensors of a target family, apart by their family in the sources; None for those that have no source."""
    apart: dict[int | None, list[CanonicalTensor]] = {}
    for tensor in tensors:
        apart.setdefault(family_of.get(tensor.ref), []).append(tensor)
    return [(index, tuple(alike)) for index, alike in apart.items()]


def _by_endpoint(holders: Holders) -> dict[EndpointId, Holders]:
    found: dict[EndpointId, list[tuple[Site, Box]]] = {}
    for site, box in holders:
        found.setdefault(site.endpoint, []).append((site, box))
    return dict(found)


@dataclass(slots=True)
class _Planner:
    """Chooses a source for every element, and keeps the sources evenly loaded."""

    node_of: NodeOf
    reach: Reach | None
    relay: bool
    moves: list[Move] = field(default_factory=list)
    load: dict[EndpointId, int] = field(default_factory=lambda: defaultdict(int))

    def fill(self, tensors: Tensors, wanted: Holders, holders: Holders, resident: Mapping[EndpointId, Holders]) -> None:
        """Fill every wanted box of these tensors."""
        arrived: dict[int | None, list[tuple[Site, Box]]] = defaultdict(list)
        for target, box in wanted:
            missing = [box]
            for site, have in resident.get(target.endpoint, ()):
                missing = self._take(tensors, missing, site, have, target)
            on_node = arrived[self.node_of.get(target.endpoint)]
            while missing:
                missing = self._fetch(tensors, missing, holders, on_node, target)

    def _take(self, tensors: Tensors, needed: list[Box], site: Site, have: Box, target: Site) -> list[Box]:
        """Move what one resident holder has of `needed`; returns what is left."""
        rest: list[Box] = []
        for box in needed:
            common = box.intersect(have)
            if common is None:
                rest.append(box)
            else:
                self.moves.append(Move(tensors, common, site, target))
                rest.extend(box.subtract(common))
        return rest

    def _fetch(
        self, tensors: Tensors, missing: list[Box], holders: Holders, arrived: list[tuple[Site, Box]], target: Site
    ) -> list[Box]:
        """Fetch as much of the first missing box as the best holder has; returns what is left.

        `arrived` is what the target's node has received so far from other nodes.
        """
        box, node, reach = missing[0], self.node_of.get(target.endpoint), self.reach
        candidates = [
            (site, common, wave)
            for wave, known in enumerate((holders, arrived))
            for site, have in known
            if (reach is None or reach(site, target)) and (common := box.intersect(have)) is not None
        ]
        if not candidates:
            raise StoreError(f"no source holds {tensors[0].ref} {box.low}:{box.high}; its last copy is gone")
        load, node_of = self.load, self.node_of

        def cost(candidate: tuple[Site, Box, int]) -> tuple[bool, int, int, int, tuple[int, EndpointId], UnitId]:
            (endpoint, unit), common, wave = candidate
            return node_of.get(endpoint) != node, wave, load[endpoint], -common.volume, by_number(endpoint), unit

        site, common, wave = min(candidates, key=cost)
        load[site.endpoint] += common.volume * tensors[0].item_bytes * len(tensors)
        self.moves.append(Move(tensors, common, site, target, wave))
        if self.relay and node_of.get(site.endpoint) != node:
            arrived.append((target, common))
        return [*box.subtract(common), *missing[1:]]
