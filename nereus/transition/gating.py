"""Schedules under memory: tasks start, the most urgent first, as soon as lanes, uplinks and memory let them.

    time goes on from end to end: what has ended gives back -> what is ready, urgent and fits starts

Such a schedule shows an order in which the tasks fit, and the releases that were over in time, from which edges are made.
Nothing idles on purpose, so it may come to a stop under memory, and need not be the shortest.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Sequence

from nereus.transition.lanes import CLOSE, Schedule
from nereus.transition.tasks import Device, Problem, Task


def fits(problem: Problem, devices: Sequence[Device], schedule: Schedule) -> bool:
    """Whether no device is ever overfull in a schedule; what ends at a moment has given back before another starts."""
    tasks, starts = problem.tasks, schedule.starts
    for device in devices:
        events = sorted(
            event
            for index, takes, gives in device.uses
            for event in ((starts[index], 1, takes), (starts[index] + tasks[index].seconds - CLOSE, 0, -gives))
        )
        level = device.held
        for _, _, change in events:
            level += change
            if change > 0 and level > problem.usable_bytes:
                return False
    return True


def gated(
    tasks: Sequence[Task],
    after: Sequence[frozenset[int]],
    lanes: Sequence[Sequence[int]],
    priority: Sequence[float],
    devices: Sequence[Device] = (),
    usable_bytes: float = float("inf"),
) -> Schedule | None:
    """The schedule of a priority; None where what is left fits on the devices only in another order."""
    level = [device.held for device in devices]
    uses: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, device in enumerate(devices):
        for use in device.uses:
            uses[use.task].append((number, use.takes, use.gives))
    followers: defaultdict[int, list[int]] = defaultdict(list)
    for index, before in enumerate(after):
        for other in before:
            followers[other].append(index)
    masks = [sum(1 << lane for lane in of_task) for of_task in lanes]
    links = [tuple(task.uplinks.items()) for task in tasks]
    missing = [len(before) for before in after]
    ready = sorted((-priority[index], index) for index, count in enumerate(missing) if not count)
    running: list[tuple[float, int]] = []
    carried: defaultdict[str, float] = defaultdict(float)
    starts, order, busy, now = [0.0] * len(tasks), list[int](), 0, 0.0

    def may_start(index: int) -> bool:
        if busy & masks[index]:
            return False
        for number, takes, _ in uses.get(index, ()):
            if takes and level[number] + takes > usable_bytes:
                return False
        return all(carried[link] + share <= 1 + CLOSE for link, share in links[index]) if links[index] else True

    while ready or running:
        waiting: list[tuple[float, int]] = []
        for urgent in ready:
            index = urgent[1]
            if not may_start(index):
                waiting.append(urgent)
                continue
            starts[index] = now
            order.append(index)
            busy |= masks[index]
            heapq.heappush(running, (now + tasks[index].seconds, index))
            for number, takes, _ in uses.get(index, ()):
                level[number] += takes
            for link, share in links[index]:
                carried[link] += share
        ready = waiting
        if not running:
            return None
        now = running[0][0]
        while running and running[0][0] <= now:
            _, index = heapq.heappop(running)
            busy &= ~masks[index]
            for number, _, gives in uses.get(index, ()):
                level[number] -= gives
            for link, share in links[index]:
                carried[link] -= share
            for follower in followers.get(index, ()):
                missing[follower] -= 1
                if not missing[follower]:
                    insort(ready, (-priority[follower], follower))
    return Schedule(tuple(starts), now, order)
