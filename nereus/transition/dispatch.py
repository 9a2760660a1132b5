"""When each operation starts: one at a time on a device, uplinks shared out, and the order of dispatch that is shortest.

    after + seconds + members + uplinks -> serial schedules by different priorities -> the shortest -> its order of starts

Started whenever they are ready, operations never wait for a more urgent one, and the transition takes longer. So a schedule
is made first: task by task in the order of a priority, each at the earliest moment that is free on all of its devices. The
order of its starts is the dispatch order, which every device's lane keeps: one global order, so no two wait for each other.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from nereus.transition.gating import gated
from nereus.transition.lanes import CLOSE, Schedule, Uplinks, first_gap, lanes_of
from nereus.transition.tasks import Order, Task

MAX_PASSES = 40
"""Schedules made of a small transition, unless one is proved the shortest before."""

PASSED_TASKS = 2_200
"""Tasks scheduled over all passes together, so that a thousand devices are ordered in milliseconds."""

FIRST_PASSES = 5
"""Schedules made of any transition, however large."""

URGED_PASSES = 14
"""Of the schedules, those that learn from the one before: the gaps that these close are closed within ten."""

URGENCY = 0.3
"""Of the schedule's seconds: by how much more urgent a task becomes that was kept waiting; 0.1 and 1.0 learn more slowly."""


class Waits(NamedTuple):
    """What each task waits for, and who waits for it."""

    after: Sequence[frozenset[int]]
    followers: Mapping[int, Iterable[int]]
    order: Order
    """All tasks, each after those that it waits for."""


def shortest(
    tasks: Sequence[Task], after: Sequence[frozenset[int]], order: Order, lanes: list[list[int]] | None = None
) -> Schedule:
    """The shortest schedule that was found. `order` is any order that `after` admits; `lanes` are those of the tasks."""
    forward = Waits(after, _followers(after), order)
    backward = Waits(
        [frozenset(forward.followers.get(i, ())) for i in range(len(after))], dict(enumerate(after)), order[::-1]
    )
    lanes = lanes_of(tasks) if lanes is None else lanes
    tails = _tails(tasks, forward)
    least = _least(tasks, forward, lanes, tails)
    best = _urged(tasks, forward, lanes, tails, least)
    passes = passes_for(tasks) - URGED_PASSES
    for priority in _priorities(tasks, order, lanes, tails):
        if best.seconds <= least + CLOSE or passes <= 0:
            break
        found = _scheduled(tasks, forward, lanes, priority)
        # Justified: all as late as the end allows, the last first, then as early as that order allows.
        late = _scheduled(tasks, backward, lanes, _ends(tasks, found))
        again = _scheduled(tasks, forward, lanes, _ends(tasks, late))
        at_once = gated(tasks, after, lanes, priority)
        assert at_once is not None
        best = min(best, found, again, at_once, key=lambda schedule: schedule.seconds)
        passes -= 4
    return best


def _urged(tasks: Sequence[Task], waits: Waits, lanes: list[list[int]], tails: list[float], least: float) -> Schedule:
    """Schedules that learn: what a lane or an uplink kept waiting on the critical chain is more urgent in the next one."""
    priority = next(_priorities(tasks, waits.order, lanes, tails))
    best: Schedule | None = None
    for _ in range(max(FIRST_PASSES, min(URGED_PASSES, passes_for(tasks)))):
        found = gated(tasks, waits.after, lanes, priority)
        assert found is not None
        if best is None or found.seconds < best.seconds - CLOSE:
            best = found
        if best.seconds <= least + CLOSE:
            break
        priority = list(priority)
        for index in _kept_waiting(tasks, waits, lanes, found):
            priority[index] += URGENCY * found.seconds
    assert best is not None
    return best


def _kept_waiting(tasks: Sequence[Task], waits: Waits, lanes: list[list[int]], schedule: Schedule) -> list[int]:
    """The tasks of the chain that ends last which did not start when all that they wait for had ended."""
    starts, ends = schedule.starts, _ends(tasks, schedule)
    ended: defaultdict[int, list[int]] = defaultdict(list)
    for index, end in enumerate(ends):
        ended[round(end / CLOSE)].append(index)
    index = max(range(len(tasks)), key=ends.__getitem__)
    found: list[int] = []
    while starts[index] > CLOSE:
        just = [j for j in ended[round(starts[index] / CLOSE)] if j != index and starts[j] < starts[index]]
        before = [j for j in just if j in waits.after[index]]
        if not before:
            found.append(index)
            mine, links = set(lanes[index]), tasks[index].uplinks.keys()
            before = [j for j in just if not mine.isdisjoint(lanes[j]) or links & tasks[j].uplinks.keys()]
        if not before:
            break
        index = max(before, key=lambda j: tasks[j].seconds)
    return found


def _ends(tasks: Sequence[Task], schedule: Schedule) -> list[float]:
    return [start + task.seconds for start, task in zip(schedule.starts, tasks, strict=True)]


def passes_for(tasks: Sequence[Task]) -> int:
    """How many schedules are made of so many tasks."""
    return max(1, min(MAX_PASSES, PASSED_TASKS // max(1, len(tasks))))


def priorities(tasks: Sequence[Task], order: Order, lanes: list[list[int]]) -> Iterator[Sequence[float]]:
    """What is more urgent, in one way after another; `order` is any that the tasks' own waits admit."""
    after = [task.after for task in tasks]
    return _priorities(tasks, order, lanes, _tails(tasks, Waits(after, _followers(after), order)))


def _followers(after: Sequence[frozenset[int]]) -> dict[int, list[int]]:
    followers: dict[int, list[int]] = {}
    for index, before in enumerate(after):
        for other in before:
            followers.setdefault(other, []).append(index)
    return followers


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
    tasks: Sequence[Task], order: Order, lanes: list[list[int]], tails: list[float]
) -> Iterator[Sequence[float]]:
    """What is urgent: a long chain, with the load of the busiest lane or uplink; the order given; both shaken, seeded."""
    load: defaultdict[int | str, float] = defaultdict(float)
    for index, task in enumerate(tasks):
        for lane in lanes[index]:
            load[lane] += task.seconds
        for link, share in task.uplinks.items():
            load[link] += share * task.seconds
    loads: list[float] = []
    for index, task in enumerate(tasks):
        used: tuple[int | str, ...] = (*lanes[index], *task.uplinks)
        loads.append(max((load[resource] for resource in used), default=0.0))
    both = [tail + busy for tail, busy in zip(tails, loads, strict=True)]
    position = [0.0] * len(tasks)
    for place, index in enumerate(order):
        position[index] = -float(place)
    yield both
    yield position
    yield tails
    random = np.random.default_rng(0)
    for sample in count():
        base, spread = np.array(both if sample % 2 else tails), (0.5, 2.0)[sample // 2 % 2]
        yield [float(value) for value in base * np.exp(random.normal(0.0, spread, len(base)))]


def _scheduled(tasks: Sequence[Task], waits: Waits, lanes: list[list[int]], priority: Sequence[float]) -> Schedule:
    """Task by task, the most urgent of the ready ones first, each into the earliest gap that holds it."""
    busy: list[list[tuple[float, float]]] = [[] for _ in range(1 + max((n for of in lanes for n in of), default=-1))]
    links = Uplinks()
    missing = [len(before) for before in waits.after]
    ready = sorted((-priority[index], index) for index, count in enumerate(missing) if not count)
    starts, placed = [0.0] * len(tasks), list[int]()
    while ready:
        _, index = ready.pop(0)
        task = tasks[index]
        start = max((starts[b] + tasks[b].seconds for b in waits.after[index]), default=0.0)
        while True:
            free = links.first_room(task, first_gap([busy[lane] for lane in lanes[index]], start, task.seconds))
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
