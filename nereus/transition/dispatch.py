"""When each operation starts: one at a time on a device, uplinks shared out, and the order of dispatch that is shortest.

    after + seconds + members + uplinks -> serial schedules by different priorities -> the shortest -> its order of starts

Started whenever they are ready, operations never wait for a more urgent one, and the transition takes longer. So a schedule
is made first: task by task in the order of a priority, each at the earliest moment that is free on all of its devices. The
order of its starts is the dispatch order, which every device's lane keeps: one global order, so no two wait for each other.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nereus.transition.tasks import Order, Task

SAMPLES = 40
"""Priorities that are tried for a small transition; the prototype came within 0.4 % of the best solver by as many."""

SAMPLED_TASKS = 1_000
"""Tasks scheduled over all samples together, so that a thousand devices are ordered in milliseconds: two samples then."""

CLOSE = 1e-9
"""Seconds that are no difference."""


class Schedule(NamedTuple):
    """When each task starts, and when all have ended."""

    starts: tuple[float, ...]
    seconds: float
    order: Order
    """The tasks by their starts."""


class Waits(NamedTuple):
    """What each task waits for, and who waits for it."""

    after: Sequence[frozenset[int]]
    followers: Mapping[int, Sequence[int]]
    order: Order
    """All tasks, each after those that it waits for."""


def shortest(tasks: Sequence[Task], after: Sequence[frozenset[int]], order: Order) -> Schedule:
    """The shortest schedule that was found. `order` is any order that `after` admits."""
    followers: defaultdict[int, list[int]] = defaultdict(list)
    for index, before in enumerate(after):
        for other in before:
            followers[other].append(index)
    waits, lanes = Waits(after, followers, order), _lanes(tasks)
    tails = _tails(tasks, waits)
    least = _least(tasks, waits, lanes, tails)
    best: Schedule | None = None
    for priority in _priorities(tasks, waits, lanes, tails):
        found = _scheduled(tasks, waits, lanes, priority)
        if best is None or found.seconds < best.seconds - CLOSE:
            best = found
        if best.seconds <= least + CLOSE:
            break
    assert best is not None
    return best


def in_order(tasks: Sequence[Task], after: Sequence[frozenset[int]]) -> Schedule:
    """The schedule of tasks in their own order: no device takes one before those ahead of it."""
    free: defaultdict[str, float] = defaultdict(float)
    links = _Uplinks()
    starts: list[float] = []
    for task, before in zip(tasks, after, strict=True):
        ready = max([starts[b] + tasks[b].seconds for b in before] + [free[member] for member in task.members], default=0.0)
        starts.append(links.first_room(task, ready))
        links.take(task, starts[-1])
        free.update(dict.fromkeys(task.members, starts[-1] + task.seconds))
    end = max((start + task.seconds for start, task in zip(starts, tasks, strict=True)), default=0.0)
    return Schedule(tuple(starts), end, list(range(len(tasks))))


def _lanes(tasks: Sequence[Task]) -> list[list[int]]:
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


def _tails(tasks: Sequence[Task], waits: Waits) -> list[float]:
    """Seconds from the start of each task to the end of the longest chain that it begins."""
    tails = [0.0] * len(tasks)
    for index in reversed(waits.order):
        tails[index] = tasks[index].seconds + max((tails[f] for f in waits.followers.get(index, ())), default=0.0)
    return tails


def _least(tasks: Sequence[Task], waits: Waits, lanes: list[list[int]], tails: list[float]) -> float:
    """No schedule is shorter: the longest chain; each lane with what comes before and after it; each uplink."""
    heads = [0.0] * len(tasks)
    for index in waits.order:
        heads[index] = max((heads[before] + tasks[before].seconds for before in waits.after[index]), default=0.0)
    on_lane: defaultdict[int, list[int]] = defaultdict(list)
    carried: defaultdict[str, float] = defaultdict(float)
    for index, task in enumerate(tasks):
        for lane in lanes[index]:
            on_lane[lane].append(index)
        for link, share in task.uplinks.items():
            carried[link] += share * task.seconds
    bounds = [max(tails, default=0.0), *carried.values()]
    for members in on_lane.values():
        busy = sum(tasks[index].seconds for index in members)
        after = min(tails[index] - tasks[index].seconds for index in members)
        bounds.append(min(heads[index] for index in members) + busy + after)
    return max(bounds)


def _priorities(
    tasks: Sequence[Task], waits: Waits, lanes: list[list[int]], tails: list[float]
) -> Iterator[Sequence[float]]:
    """What is more urgent: the longer chain, with the load of the busiest lane, and both shaken by a fixed seed."""
    load: defaultdict[int, float] = defaultdict(float)
    for index, task in enumerate(tasks):
        for lane in lanes[index]:
            load[lane] += task.seconds
    loads = [max((load[lane] for lane in lanes[index]), default=0.0) for index in range(len(tasks))]
    both = [tail + busy for tail, busy in zip(tails, loads, strict=True)]
    samples = min(SAMPLES, max(2, SAMPLED_TASKS // max(1, len(tasks))))
    yield both
    yield tails
    random = np.random.default_rng(0)
    for sample in range(samples - 2):
        base = both if sample % 2 else tails
        yield [float(value) for value in np.array(base) * random.uniform(0.5, 1.5, len(base))]


def _scheduled(tasks: Sequence[Task], waits: Waits, lanes: list[list[int]], priority: Sequence[float]) -> Schedule:
    """Task by task, the most urgent of the ready ones first, each into the earliest gap that holds it."""
    busy: list[list[tuple[float, float]]] = [[] for _ in range(1 + max((n for of in lanes for n in of), default=-1))]
    links = _Uplinks()
    missing = [len(before) for before in waits.after]
    ready = sorted((-priority[index], index) for index, count in enumerate(missing) if not count)
    starts, placed = [0.0] * len(tasks), list[int]()
    while ready:
        _, index = ready.pop(0)
        task = tasks[index]
        start = max((starts[b] + tasks[b].seconds for b in waits.after[index]), default=0.0)
        while True:
            free = links.first_room(task, _first_gap([busy[lane] for lane in lanes[index]], start, task.seconds))
            if free <= start + CLOSE:
                break
            start = free
        starts[index] = start
        placed.append(index)
        links.take(task, start)
        for lane in lanes[index]:
            insort(busy[lane], (start, start + task.seconds))
        for follower in waits.followers.get(index, ()):
            missing[follower] -= 1
            if not missing[follower]:
                insort(ready, (-priority[follower], follower))
    position = {index: place for place, index in enumerate(placed)}
    end = max((start + task.seconds for start, task in zip(starts, tasks, strict=True)), default=0.0)
    return Schedule(tuple(starts), end, sorted(placed, key=lambda index: (starts[index], position[index])))


def _first_gap(lanes: Sequence[list[tuple[float, float]]], start: float, seconds: float) -> float:
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


class _Uplinks:
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
