"""The fewest bytes that turn one catalog into another.

A move is the intersection of a target box with a source box. What the target endpoint already holds, in whichever unit,
is copied locally; the rest is fetched once, from the least loaded replica, those on the same node first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nereus.errors import StoreError
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, Site
from nereus.layout.tensors import CanonicalTensor


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `box` of `tensor` from one site to another. Within an endpoint it is a local copy, never an alias."""

    tensor: CanonicalTensor
    """The target's tensor: its dtype is what travels."""
    box: Box
    source: Site
    target: Site

    @property
    def is_local(self) -> bool:
        return self.source.endpoint == self.target.endpoint

    @property
    def num_bytes(self) -> int:
        return self.box.volume * self.tensor.item_bytes


def minimal_moves(
    sources: Catalog, targets: Catalog, same_node: Callable[[EndpointId, EndpointId], bool] = lambda a, b: True
) -> tuple[Move, ...]:
    """The moves that fill every target box exactly once and send nothing that is resident.

    Tensors are matched by reference, so that a weight sync may change the dtype on the way. Raises StoreError, with the
    tensor and the box, if a target element has no source.
    """
    held = {tensor.ref: holders for tensor, holders in sources.holdings.items()}
    load: dict[EndpointId, int] = defaultdict(int)
    moves: list[Move] = []
    for tensor, wanted in targets.holdings.items():
        holders = held.get(tensor.ref, ())
        for target, box in wanted:
            resident = [(site, have) for site, have in holders if site.endpoint == target.endpoint]
            missing = _take(tensor, [box], resident, target, moves)
            while missing:
                missing = _fetch(tensor, missing, holders, target, load, same_node, moves)
    return tuple(moves)


def _take(
    tensor: CanonicalTensor, needed: list[Box], holders: Iterable[tuple[Site, Box]], target: Site, moves: list[Move]
) -> list[Box]:
    """Move what `holders` have of `needed`; returns what is left."""
    for site, have in holders:
        rest: list[Box] = []
        for box in needed:
            common = box.intersect(have)
            if common is not None:
                moves.append(Move(tensor, common, site, target))
            rest.extend(box.subtract(have))
        needed = rest
    return needed


def _fetch(
    tensor: CanonicalTensor,
    missing: list[Box],
    holders: tuple[tuple[Site, Box], ...],
    target: Site,
    load: dict[EndpointId, int],
    same_node: Callable[[EndpointId, EndpointId], bool],
    moves: list[Move],
) -> list[Box]:
    """Fetch as much of the first missing box as the best remote holder has."""
    box = missing[0]
    candidates = [(site, common) for site, have in holders if (common := box.intersect(have)) is not None]
    if not candidates:
        raise StoreError(f"no source holds {tensor.ref} {box.low}:{box.high}; its last copy is gone")
    site, common = min(
        candidates,
        key=lambda c: (not same_node(c[0].endpoint, target.endpoint), load[c[0].endpoint], -c[1].volume, c[0]),
    )
    load[site.endpoint] += common.volume * tensor.item_bytes
    moves.append(Move(tensor, common, site, target))
    return [*box.subtract(common), *missing[1:]]
