"""Which device of a cluster each declared device of a job has: its seat.

    declared: device d is on node d // each          cluster: a pool device is (node, index), for ever the same device

    seats so far + pool devices that nobody has -> seated -> seats, as many as find one

The devices of a declared node lie together on one node of the cluster, since what links them is priced as one node's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nereus.emu.plan import DeviceId


@dataclass(frozen=True, slots=True, order=True)
class PoolDevice:
    """One device of a cluster. Ray never gives a node's id again, so it is this device for ever."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node[:8]}/{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a node of the cluster offers."""

    id: str
    devices: int
    """Devices."""
    is_leaving: bool = False
    """Whether it will go: nothing new is put on it."""
    gone_s: float | None = None
    """When it goes, in seconds since 1970; None where nobody has said."""

    @property
    def all(self) -> tuple[PoolDevice, ...]:
        """Its pool devices in order."""
        return tuple(PoolDevice(self.id, index) for index in range(self.devices))


@dataclass(frozen=True, slots=True)
class Shape:
    """The nodes that a job declares."""

    nodes: int
    each: int
    """Devices of each."""
    apart: bool
    """Whether each is a node of its own, as with accelerators; emulated ones may share a node that offers enough."""

    @property
    def places(self) -> tuple[DeviceId, ...]:
        """All declared devices."""
        return tuple(range(self.nodes * self.each))


Seats = Mapping[DeviceId, PoolDevice]
"""The pool device of each declared device that has one."""


def free_devices(nodes: Iterable[Node], taken: Collection[PoolDevice]) -> dict[str, list[PoolDevice]]:
    """By node, in the order given: the pool devices that nobody has, of nodes that stay."""
    return {node.id: [seat for seat in node.all if seat not in taken] for node in nodes if not node.is_leaving}


def still_there(seats: Seats, nodes: Iterable[Node]) -> dict[DeviceId, PoolDevice]:
    """The seats whose device has not gone with its node."""
    there = {seat for node in nodes for seat in node.all}
    return {place: seat for place, seat in seats.items() if seat in there}


def seated(
    shape: Shape, seats: Seats, free: Mapping[str, list[PoolDevice]], wanted: Iterable[DeviceId]
) -> dict[DeviceId, PoolDevice]:
    """Slots for wanted devices without a seat, as many as find one; `free` and `seats` stay as they are.

    A declared node that is on a node of the cluster already stays there. Others go to the first node on which all that is
    wanted of them finds room, else to the one with the most.
    """
    left = {node: list(devices) for node, devices in free.items()}
    found: dict[DeviceId, PoolDevice] = {}
    node_of = {place // shape.each: seat.node for place, seat in seats.items()}
    by_node: dict[int, list[DeviceId]] = {}
    for place in sorted(set(wanted).difference(seats)):
        by_node.setdefault(place // shape.each, []).append(place)
    for declared, places in by_node.items():
        taken = set(node_of.values()) if shape.apart else set()
        node = node_of.get(declared) or _room(left, len(places), taken)
        if node is None:
            continue
        devices = left.get(node, [])
        given = dict(zip(places, devices, strict=False))
        if given:
            found |= given
            left[node] = devices[len(given) :]
            node_of[declared] = node
    return found


def all_seated(
    shape: Shape, seats: Seats, free: Mapping[str, list[PoolDevice]], wanted: Collection[DeviceId]
) -> dict[DeviceId, PoolDevice] | None:
    """Slots for all wanted devices without a seat, the largest declared nodes first; None unless every one finds one."""
    sizes: dict[int, int] = {}
    for place in wanted:
        sizes[place // shape.each] = sizes.get(place // shape.each, 0) + 1
    left, found = {node: list(devices) for node, devices in free.items()}, dict[DeviceId, PoolDevice]()
    for declared in sorted(sizes, key=lambda at: (-sizes[at], at)):
        of_node = [place for place in wanted if place // shape.each == declared]
        more = seated(shape, {**seats, **found}, left, of_node)
        if len(more) < len([place for place in of_node if place not in seats]):
            return None
        found |= more
        left = {node: [seat for seat in devices if seat not in more.values()] for node, devices in left.items()}
    return found


def _room(left: Mapping[str, list[PoolDevice]], number: int, taken: Collection[str]) -> str | None:
    """The first node with room for so many, else the one with the most; None if no node has any."""
    open_nodes = [node for node, devices in left.items() if devices and node not in taken]
    enough = (node for node in open_nodes if len(left[node]) >= number)
    return next(enough, max(open_nodes, key=lambda node: len(left[node]), default=None))
