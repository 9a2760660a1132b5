"""Where candidates go: for each node, how many devices host each pattern of holders.

Devices of a node are alike, so a node is a list of (pattern, devices) with what is left of its host's memory, and equal
nodes are counted, not listed: no loop is over devices. Holders go in one by one, coarse quanta first, filling whole nodes of
one state and at most one node partly, stacked on the holders that are there or spread away from them. Where this finds
nothing, `packing` decides exactly.

    {site: nodes}  --holder-->  {site: nodes}  -> ...  -> Placement: patterns per node of the pool
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias

from nereus.planner.problem import Node

NodeState: TypeAlias = tuple[tuple[int, int], ...]
"""(pattern, devices) of one node, by pattern; a pattern is a bit mask of holders, 0 an idle device."""

Placement: TypeAlias = tuple[NodeState, ...]
"""A state for every node of a pool, in its order."""

Site: TypeAlias = tuple[NodeState, float]
"""A node while it is filled: its state, and the bytes of its host that are left for what is offloaded."""

Moves: TypeAlias = tuple[tuple[Site, Site, int], ...]
"""Nodes like one site that became like another, in order."""

MOST_STEPS = 400
"""Attempts to put one holder somewhere before the exact method takes over; a plain placement takes one per holder."""

MOST_PERMUTED = 4
"""Up to so many different node states are tried in every order: more would take as long as the exact method."""


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """A candidate to place."""

    bit: int
    """1 << holder."""
    num_devices: int
    quantum: int
    host_bytes: float = 0.0
    """For each device, on its node's host."""


def initial_states(nodes: Sequence[Node], pinned: Mapping[int, Sequence[int]]) -> Placement:
    """The nodes with only the pinned holders on them."""
    hosts: Counter[int] = Counter()
    for holder, devices in pinned.items():
        for device in devices:
            hosts[device] += 1 << holder
    if not hosts:
        return tuple(((0, len(node.devices)),) for node in nodes)
    return tuple(tuple(sorted(Counter(hosts[device] for device in node.devices).items())) for node in nodes)


def fill(
    items: Sequence[Item], groups: Mapping[Site, int], allowed: Sequence[bool], most_steps: int = MOST_STEPS
) -> Moves | None:
    """How to put all items into so many nodes like each site, or None if this way of looking found none: no proof.

    `allowed` says by pattern whether one device can host it.
    """
    ordered = sorted(items, key=lambda item: (-item.quantum, -item.num_devices, item.bit))
    return _put_in(ordered, groups, allowed, iter(range(most_steps)))


def _put_in(
    items: Sequence[Item], groups: Mapping[Site, int], allowed: Sequence[bool], steps: Iterator[int]
) -> Moves | None:
    """Depth-first over the ways to put in the first item, then the rest."""
    if not items:
        return ()
    if next(steps, None) is None:
        return None
    seen = set()
    for moves in _ways(items[0], groups, allowed):
        grown = Counter(groups)
        for old, new, nodes in moves:
            grown[old] -= nodes
            grown[new] += nodes
        after = {site: nodes for site, nodes in sorted(grown.items()) if nodes}
        key = tuple(after.items())
        if key in seen:
            continue
        seen.add(key)
        rest = _put_in(items[1:], after, allowed, steps)
        if rest is not None:
            return (*moves, *rest)
    return None


def _ways(item: Item, groups: Mapping[Site, int], allowed: Sequence[bool]) -> Iterator[Moves]:
    """Ways to put an item in: nodes in several orders, on the fullest devices of a node first or on the emptiest."""
    rooms = {site: _room(item, site, allowed) for site in groups}
    usable = [site for site in groups if rooms[site]]
    if sum(groups[site] * rooms[site] for site in usable) < item.num_devices:
        return
    orders = [
        sorted(usable, key=lambda site: (-_load(site), rooms[site], site)),
        sorted(usable, key=lambda site: (_load(site), -rooms[site], site)),
    ]
    if 2 <= len(usable) <= MOST_PERMUTED:
        orders += [list(order) for order in permutations(usable)]
    for stacked in (True, False):
        for order in orders:
            moves, needed = [], item.num_devices
            for site in order:
                full = min(groups[site], needed // rooms[site])
                needed -= full * rooms[site]
                part = needed // item.quantum * item.quantum if full < groups[site] else 0
                needed -= part
                for devices, nodes in ((rooms[site], full), (part, 1 if part else 0)):
                    if nodes:
                        moves.append((site, _with(site, item, devices, allowed, stacked=stacked), nodes))
            if not needed:
                yield tuple(moves)


def _room(item: Item, site: Site, allowed: Sequence[bool]) -> int:
    """Devices of a node that an item can have."""
    state, left = site
    room = sum(count for pattern, count in state if allowed[pattern | item.bit])
    if item.host_bytes:
        room = min(room, int(left // item.host_bytes))
    return room // item.quantum * item.quantum


def _with(site: Site, item: Item, devices: int, allowed: Sequence[bool], *, stacked: bool) -> Site:
    """A node with one more holder on some of its devices."""
    (state, left), bit, sign = site, item.bit, -1 if stacked else 1
    left -= devices * item.host_bytes
    counts: Counter[int] = Counter(dict(state))
    for pattern, count in sorted(state, key=lambda pair: (sign * pair[0].bit_count(), pair[0])):
        if allowed[pattern | bit]:
            taken = min(devices, count)
            devices -= taken
            counts[pattern] -= taken
            counts[pattern | bit] += taken
    return tuple(sorted((pattern, count) for pattern, count in counts.items() if count)), left


def _load(site: Site) -> int:
    return sum(pattern.bit_count() * count for pattern, count in site[0])


def carried_out(sites: Sequence[Site], moves: Moves) -> Placement:
    """The moves carried out on the nodes themselves, the first nodes like each site first."""
    now = list(sites)
    where: dict[Site, list[int]] = {}
    for at, site in enumerate(now):
        where.setdefault(site, []).append(at)
    for old, new, nodes in moves:
        taken, where[old] = where[old][:nodes], where[old][nodes:]
        where[new] = sorted(where.get(new, []) + taken)
        for at in taken:
            now[at] = new
    return tuple(state for state, _ in now)
