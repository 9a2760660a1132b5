"""One order of tasks by a rule, and the edges that make it safe under any timing (paper, section 6).

    release before acquire, then stage order -> the first ready task that fits -> ...        None if the rest is blocked

A blocked task waits and others go on. The edges: a task waits for releases placed before it until it fits, counting of the
others only what they take. So whatever runs at the same time, no device holds more than it has, and the DAG stays acyclic.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nereus.layout.catalog import EndpointId
from nereus.transition.tasks import Device, Order, Problem, Task, stage_rank

Key = Callable[[int, Task], tuple[object, ...]]
"""Which of the ready tasks comes first."""


class Blocked(NamedTuple):
    """The first task that did not fit in an order that came to its end before all tasks were placed."""

    task: int
    endpoint: EndpointId
    needed_bytes: int


def paper_rule(index: int, task: Task) -> tuple[object, ...]:
    """Release before acquire; ties go generation, inference, training."""
    return not task.is_release, stage_rank(task.stage), index


def peak_rule(index: int, task: Task) -> tuple[object, ...]:
    """What leaves no device with more goes first; then whatever takes most for a moment, while there is room for it."""
    return not task.never_grows, -task.transient, stage_rank(task.stage), index


def place(problem: Problem, devices: Sequence[Device], key: Key) -> Order | Blocked:
    """The tasks one after the other, always the first by `key` of those that are ready and fit."""
    tasks, level = problem.tasks, [device.held for device in devices]
    uses: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, device in enumerate(devices):
        for use in device.uses:
            uses[use.task].append((number, use.takes, use.gives))
    followers: defaultdict[int, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        for before in task.after:
            followers[before].append(index)
    missing = [len(task.after) for task in tasks]
    keys = [key(index, task) for index, task in enumerate(tasks)]
    ready = [(keys[index], index) for index, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    blocked: defaultdict[int, list[int]] = defaultdict(list)
    order: Order = []
    while ready:
        _, index = heapq.heappop(ready)
        tight = [n for n, takes, _ in uses[index] if takes and level[n] + takes > problem.usable_bytes]
        if tight:
            blocked[tight[0]].append(index)
            continue
        order.append(index)
        for number, takes, gives in uses[index]:
            level[number] += takes - gives
            for waiting in blocked.pop(number, ()) if gives else ():
                heapq.heappush(ready, (keys[waiting], waiting))
        for follower in followers[index]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, (keys[follower], follower))
    if len(order) == len(tasks):
        return order
    number, index = min(((n, i) for n, waiting in blocked.items() for i in waiting), key=lambda b: keys[b[1]])
    takes = next(takes for n, takes, _ in uses[index] if n == number)
    return Blocked(index, devices[number].endpoint, level[number] + takes)


def resource_edges(
    problem: Problem, devices: Sequence[Device], order: Order, ends: Sequence[float] | None = None
) -> dict[int, frozenset[int]]:
    """For each task the releases that it has to wait for, so that it fits whatever runs at the same time.

    With the `ends` of a schedule, in seconds, whatever ends first is waited for first. Without, a Destroy goes before the
    end of another task, and whatever would end first if each started as soon as those that it waits for have ended.
    """
    if not devices:
        return {}
    tasks = problem.tasks
    uses: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, device in enumerate(devices):
        for use in device.uses:
            uses[use.task].append((number, use.takes, use.gives))
    taken = [device.held for device in devices]
    released: list[list[tuple[int, int]]] = [[] for _ in devices]
    ancestors = [0] * len(tasks)
    first_ends = [0.0] * len(tasks)
    edges: dict[int, frozenset[int]] = {}
    for index in order:
        known, added = 0, set[int]()
        for before in tasks[index].after:
            known |= ancestors[before] | 1 << before
        for number, takes, _ in uses[index]:
            while takes and _level(taken[number], released[number], known) + takes > problem.usable_bytes:
                able = [by for by, _ in released[number] if not known >> by & 1]
                chosen = min(able, key=lambda by: (ends is None and not tasks[by].is_release, (ends or first_ends)[by], by))
                added.add(chosen)
                known |= ancestors[chosen] | 1 << chosen
        for number, takes, gives in uses[index]:
            taken[number] += takes
            if gives:
                released[number].append((index, gives))
        ancestors[index] = known
        waited = (*tasks[index].after, *added)
        first_ends[index] = tasks[index].seconds + max((first_ends[before] for before in waited), default=0.0)
        if added:
            edges[index] = frozenset(added)
    return edges


def _level(taken: int, released: list[tuple[int, int]], known: int) -> int:
    """What is held when only the releases that are known to have ended have given back."""
    return taken - sum(size for by, size in released if known >> by & 1)


def ancestors_of(tasks: Sequence[Task], order: Order) -> list[int]:
    """For each task all that it waits for, directly or not, as bits."""
    found = [0] * len(tasks)
    for index in order:
        for before in tasks[index].after:
            found[index] |= found[before] | 1 << before
    return found
