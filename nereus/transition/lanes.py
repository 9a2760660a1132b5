"""What operations share while they run: their devices' lanes, one at a time, and nodes' uplinks, by their shares.

tasks -> lanes_of (devices with the same tasks are one) + Uplinks -> Schedule: when each starts
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from nereus.transition.tasks import Order, Task

CLOSE = 1e-9
"""Seconds that are no difference."""


class Schedule(NamedTuple):
    """When each task starts, and when all have ended."""

    starts: tuple[float, ...]
    seconds: float
    order: Order
    """The tasks by their starts."""


def in_order(tasks: Sequence[Task], after: Sequence[frozenset[int]]) -> Schedule:
    """The schedule of tasks in their own order: no device takes one before those ahead of it."""
    free: defaultdict[str, float] = defaultdict(float)
    links = Uplinks()
    starts: list[float] = []
    for task, before in zip(tasks, after, strict=True):
        ready = max([starts[b] + tasks[b].seconds for b in before] + [free[member] for member in task.members], default=0.0)
        starts.append(links.first_room(task, ready))
        links.take(task, starts[-1])
        free.update(dict.fromkeys(task.members, starts[-1] + task.seconds))
    end = max((start + task.seconds for start, task in zip(starts, tasks, strict=True)), default=0.0)
    return Schedule(tuple(starts), end, list(range(len(tasks))))


def lanes_of(tasks: Sequence[Task]) -> list[list[int]]:
    """For each task the lanes that it takes: one for devices that take part in the same tasks, or in some of another's."""
    of_device: defaultdict[str, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        for member in task.members:
            of_device[member].append(index)
    lanes: list[list[int]] = [[] for _ in tasks]
    kept: list[int] = []
    for key in sorted({tuple(members) for members in of_device.values() if len(members) > 1}, key=lambda k: (-len(k), k)):
        mask = sum(1 << index for index in key)
        if any(kept[lane] & mask == mask for lane in lanes[key[0]]):
            continue
        for index in key:
            lanes[index].append(len(kept))
        kept.append(mask)
    return lanes


def first_gap(lanes: Sequence[list[tuple[float, float]]], start: float, seconds: float) -> float:
    """The earliest moment from `start` on at which all lanes are free for so long."""
    moved = True
    while moved:
        moved = False
        for lane in lanes:
            place = bisect_right(lane, (start, float("inf")))
            if place and lane[place - 1][1] > start + CLOSE:
                start, moved = lane[place - 1][1], True
            while place < len(lane) and lane[place][0] < start + seconds - CLOSE:
                start, moved = lane[place][1], True
                place += 1
    return start


class Uplinks:
    """Who takes how much of which uplink when: never more than all of it."""

    def __init__(self) -> None:
        self._taken: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)

    def first_room(self, task: Task, start: float) -> float:
        """The earliest moment from `start` on at which every uplink has room for the task until its end."""
        moved = bool(task.uplinks)
        while moved:
            moved = False
            for link, share in task.uplinks.items():
                while (later := self._next_end(link, share, start, task.seconds)) is not None:
                    start, moved = later, True
        return start

    def take(self, task: Task, start: float) -> None:
        for link, share in task.uplinks.items():
            self._taken[link].append((start, start + task.seconds, share))

    def _next_end(self, link: str, share: float, start: float, seconds: float) -> float | None:
        """When the first of those that leave no room ends; None if there is room."""
        over = [t for t in self._taken[link] if t[0] < start + seconds - CLOSE and t[1] > start + CLOSE]
        if sum(t[2] for t in over) + share <= 1 + CLOSE:
            return None
        for moment in sorted({start, *(t[0] for t in over if t[0] > start)}):
            at = [t for t in over if t[0] <= moment + CLOSE and t[1] > moment + CLOSE]
            if sum(t[2] for t in at) + share > 1 + CLOSE:
                return min(t[1] for t in at)
        return None
