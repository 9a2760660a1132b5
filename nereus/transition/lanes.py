"""What operations share while they run: their devices' lanes, one at a time, and nodes' uplinks, by their shares.

tasks -> Columns: seconds, lanes (devices with the same tasks are one), shares of uplinks, all by number
      -> Waits: who waits for whom                                            -> Schedule: when each starts
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from nereus.transition.tasks import Order, Task

CLOSE = 1e-9
"""Seconds that are no difference."""

Links: TypeAlias = Sequence[tuple[int, float]]
"""Uplinks by number, with the share of each that a task takes while it runs."""


class Schedule(NamedTuple):
    """When each task starts, and when all have ended."""

    starts: tuple[float, ...]
    seconds: float
    order: Order
    """The tasks by their starts."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Tasks as columns by number: a schedule asks for all of it, and many schedules are made of the same tasks."""

    seconds: list[float]
    lanes: list[list[int]]
    """The numbers of those that a task takes."""
    masks: list[int]
    """The same as bits."""
    links: list[Links]
    """Only uplinks that all their tasks together would overfill."""
    num_lanes: int
    num_links: int

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> Columns:
        """The columns of tasks."""
        lanes, masks = lanes_of(tasks)
        carried: defaultdict[str, float] = defaultdict(float)
        for task in tasks:
            for link, share in task.uplinks.items():
                carried[link] += share
        number = {link: at for at, link in enumerate(link for link, share in carried.items() if share > 1 + CLOSE)}
        return cls(
            [task.seconds for task in tasks],
            lanes,
            masks,
            [[(number[link], share) for link, share in task.uplinks.items() if link in number] for task in tasks],
            1 + max((lane for of_task in lanes for lane in of_task), default=-1),
            len(number),
        )

    def ends(self, schedule: Schedule) -> list[float]:
        """When each task ends."""
        return [start + seconds for start, seconds in zip(schedule.starts, self.seconds, strict=True)]


@dataclass(frozen=True, slots=True)
class Waits:
    """What each task waits for, and who waits for it."""

    after: Sequence[frozenset[int]]
    followers: list[list[int]]
    order: Order
    """All tasks, each after those that it waits for."""

    @classmethod
    def of(cls, after: Sequence[frozenset[int]], order: Order) -> Waits:
        """The waits of tasks; `order` is any that they admit."""
        followers: list[list[int]] = [[] for _ in after]
        for index, before in enumerate(after):
            for other in before:
                followers[other].append(index)
        return cls(after, followers, order)

    def backward(self) -> Waits:
        """The same with time turned round."""
        return Waits([frozenset(of) for of in self.followers], [list(before) for before in self.after], self.order[::-1])


def in_order(tasks: Sequence[Task], after: Sequence[frozenset[int]]) -> Schedule:
    """The schedule of tasks in their own order: no device takes one before those ahead of it."""
    free: defaultdict[str, float] = defaultdict(float)
    uplinks = Uplinks()
    starts: list[float] = []
    for task, before in zip(tasks, after, strict=True):
        ready = max([starts[b] + tasks[b].seconds for b in before] + [free[member] for member in task.members], default=0.0)
        starts.append(uplinks.first_room(task.uplinks.items(), ready, task.seconds))
        uplinks.take(task.uplinks.items(), starts[-1], task.seconds)
        free.update(dict.fromkeys(task.members, starts[-1] + task.seconds))
    end = max((start + task.seconds for start, task in zip(starts, tasks, strict=True)), default=0.0)
    return Schedule(tuple(starts), end, list(range(len(tasks))))


def lanes_of(tasks: Sequence[Task]) -> tuple[list[list[int]], list[int]]:
    """For each task the lanes that it takes, and the same as bits.

    There is one for devices that take part in the same tasks, or in some of another's.
    """
    of_device: defaultdict[str, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        for member in task.members:
            of_device[member].append(index)
    lanes: list[list[int]] = [[] for _ in tasks]
    masks = [0] * len(tasks)
    number = 0
    for key in sorted({tuple(members) for members in of_device.values() if len(members) > 1}, key=lambda k: (-len(k), k)):
        common = -1
        for index in key:
            common &= masks[index]
        if common:
            continue
        for index in key:
            lanes[index].append(number)
            masks[index] |= 1 << number
        number += 1
    return lanes, masks


def first_gap(lanes: Sequence[list[tuple[float, float]]], start: float, seconds: float) -> float:
    """The earliest moment from `start` on at which all lanes are free for so long."""
    moved = True
    while moved:
        moved = False
        for lane in lanes:
            if not lane or lane[-1][1] <= start + CLOSE:
                continue
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
        self._taken: defaultdict[Hashable, list[tuple[float, float, float]]] = defaultdict(list)

    def first_room(self, links: Iterable[tuple[Hashable, float]], start: float, seconds: float) -> float:
        """The earliest moment from `start` on at which every uplink has room for its share for so long."""
        moved = bool(links)
        while moved:
            moved = False
            for link, share in links:
                while (later := self._next_end(link, share, start, seconds)) is not None:
                    start, moved = later, True
        return start

    def take(self, links: Iterable[tuple[Hashable, float]], start: float, seconds: float) -> None:
        for link, share in links:
            self._taken[link].append((start, start + seconds, share))

    def _next_end(self, link: Hashable, share: float, start: float, seconds: float) -> float | None:
        """When the first of those that leave no room ends; None if there is room."""
        over = [t for t in self._taken[link] if t[0] < start + seconds - CLOSE and t[1] > start + CLOSE]
        if sum(t[2] for t in over) + share <= 1 + CLOSE:
            return None
        for moment in sorted({start, *(t[0] for t in over if t[0] > start)}):
            at = [t for t in over if t[0] <= moment + CLOSE and t[1] > moment + CLOSE]
            if sum(t[2] for t in at) + share > 1 + CLOSE:
                return min(t[1] for t in at)
        return None
