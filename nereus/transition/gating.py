"""Schedules under memory: tasks start, the most urgent first, as soon as lanes, uplinks and memory let them.

    time goes on from end to end: what has ended gives back -> what is ready, urgent and fits starts

Such a schedule shows an order in which the tasks fit, and the releases that were over in time, from which edges are made.
Nothing idles on purpose, so it may come to a stop under memory, and need not be the shortest.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from nereus.transition.lanes import CLOSE, Columns, Links, Schedule, Waits
from nereus.transition.tasks import Device


@dataclass(frozen=True, slots=True)
class Memory:
    """The devices on which memory may run short."""

    held: list[int]
    """Bytes on each before the first task."""
    uses: list[list[tuple[int, int, int]]]
    """Of each task: (device, bytes that it takes, bytes that it gives)."""
    usable_bytes: float

    @classmethod
    def of(cls, devices: Sequence[Device], num_tasks: int, usable_bytes: float) -> Memory:
        """By number of task and device."""
        uses: list[list[tuple[int, int, int]]] = [[] for _ in range(num_tasks)]
        for number, device in enumerate(devices):
            for use in device.uses:
                uses[use.task].append((number, use.takes, use.gives))
        return cls([device.held for device in devices], uses, usable_bytes)


def fits(columns: Columns, devices: Sequence[Device], usable_bytes: float, schedule: Schedule) -> bool:
    """Whether no device is ever overfull in a schedule; what ends at a moment has given back before another starts."""
    starts, ends = schedule.starts, columns.ends(schedule)
    for device in devices:
        events = sorted(
            event
            for index, takes, gives in device.uses
            for event in ((starts[index], 1, takes), (ends[index] - CLOSE, 0, -gives))
        )
        level = device.held
        for _, _, change in events:
            level += change
            if change > 0 and level > usable_bytes:
                return False
    return True


def gated(columns: Columns, waits: Waits, priority: Sequence[float], memory: Memory | None = None) -> Schedule | None:
    """The schedule of a priority; None where what is left fits on the devices only in another order.

    Tasks are looked at by their places in the order of urgency. One that may not start is parked at the resource that keeps
    it, a lane, an uplink or a device, all of them numbered through, until that is given back.
    """
    seconds, masks, links = columns.seconds, columns.masks, columns.links
    by_urgency = sorted(range(len(seconds)), key=lambda index: -priority[index])
    place = [0] * len(seconds)
    for at, index in enumerate(by_urgency):
        place[index] = at
    missing = [len(before) for before in waits.after]
    ready = [at for at, index in enumerate(by_urgency) if not missing[index]]
    parked: list[list[int]] = [
        [] for _ in range(columns.num_lanes + columns.num_links + (len(memory.held) if memory else 0))
    ]
    running: list[tuple[float, int]] = []
    carried, level = [0.0] * columns.num_links, list(memory.held) if memory else []
    starts, order, busy, now = [0.0] * len(seconds), list[int](), 0, 0.0
    while ready or running:
        ready.sort()
        for at in ready:
            index = by_urgency[at]
            taken = busy & masks[index]
            keeps = taken.bit_length() - 1 if taken else _overfull(carried, links[index], columns.num_lanes)
            if keeps < 0 and memory:
                keeps = _too_small(memory, level, index, columns.num_lanes + columns.num_links)
            if keeps >= 0:
                parked[keeps].append(at)
                continue
            starts[index] = now
            order.append(index)
            busy |= masks[index]
            heapq.heappush(running, (now + seconds[index], index))
            for link, share in links[index]:
                carried[link] += share
            for number, takes, _ in memory.uses[index] if memory else ():
                level[number] += takes
        if not running:
            return None
        now, ready = running[0][0], []
        while running and running[0][0] <= now:
            _, index = heapq.heappop(running)
            busy &= ~masks[index]
            given_back = list(columns.lanes[index])
            for link, share in links[index]:
                carried[link] -= share
                given_back.append(columns.num_lanes + link)
            for number, _, gives in memory.uses[index] if memory else ():
                level[number] -= gives
                given_back.append(columns.num_lanes + columns.num_links + number)
            for resource in given_back:
                if parked[resource]:
                    ready += parked[resource]
                    parked[resource] = []
            for follower in waits.followers[index]:
                missing[follower] -= 1
                if not missing[follower]:
                    ready.append(place[follower])
    return Schedule(tuple(starts), now, order) if len(order) == len(seconds) else None


def _overfull(carried: list[float], links: Links, first: int) -> int:
    """The number of an uplink that has no room, counted from `first`; else -1."""
    for link, share in links:
        if carried[link] + share > 1 + CLOSE:
            return first + link
    return -1


def _too_small(memory: Memory, level: list[int], index: int, first: int) -> int:
    """The number of a device on which a task does not fit, counted from `first`; else -1."""
    for number, takes, _ in memory.uses[index]:
        if takes and level[number] + takes > memory.usable_bytes:
            return first + number
    return -1
