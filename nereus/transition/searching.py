"""The second stage: where the paper's rule is blocked by memory, whether any order of the same tasks fits.

    rule -> is one device alone too small? refused -> peak rule -> stage orders -> restarts -> every order, up to a limit

Feasible at once is feasible one by one (sort by the starts), so only serial orders are looked through. Ownership leaves no
choice, since both plans are valid: those edges are among the tasks' own, and a circle of them is refused before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations

import numpy as np

from nereus.transition.exhausting import Exhausted, every_order
from nereus.transition.ordering import Blocked, Key, ancestors_of, paper_rule, peak_rule, place
from nereus.transition.tasks import Device, Order, Problem, Task, binding
from nereus.transition.verdicts import Found

MAX_STAGE_ORDERS = 120
"""Orders of the model-stages that are tried: all of five. Six would cost a refusal 720 of them, and what they find the
search finds too."""

RESTARTS = 16
"""Random priorities that are tried before the search: cheap, and each is a different greedy order."""

NODE_LIMIT = 20_000
"""Nodes of the search, each a choice between tasks: a second or so. Beyond it the refusal says that it is not proved."""

SUBSET_LIMIT = 20_000
"""Sets of ended tasks that are looked at to say how many bytes one device needs at least."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An order, or what stands in its way."""

    found: Found
    order: Order
    blocked: Blocked | None = None
    """A task, an endpoint and the bytes that it needs there: for a proof by one device, the fewest of any order."""


def ordered(problem: Problem) -> Outcome:
    """An order in which the tasks fit: the paper's where that does. Its tasks must not wait for one another in a circle."""
    devices = binding(problem)
    for device in devices:
        if device.held > problem.usable_bytes:
            return Outcome(Found.REFUSED_PROVED, [], Blocked(device.uses[0].task, device.endpoint, device.held))
    first = place(problem, devices, paper_rule)
    if not isinstance(first, Blocked):
        return Outcome(Found.GREEDY, first)
    too_small = _too_small(problem, devices)
    if too_small is not None:
        return Outcome(Found.REFUSED_PROVED, [], too_small)
    for key in _keys(problem, devices):
        order = place(problem, devices, key)
        if not isinstance(order, Blocked):
            return Outcome(Found.SEARCHED, order)
    searched = every_order(problem, devices, NODE_LIMIT)
    if isinstance(searched, Exhausted):
        return Outcome(Found.REFUSED_PROVED if searched.proved else Found.REFUSED_LIMIT, [], first)
    return Outcome(Found.SEARCHED, searched)


def _keys(problem: Problem, devices: Sequence[Device]) -> Iterator[Key]:
    """Rules to try: the peak rule, the stages in other orders, and random priorities that are the same each time."""
    yield peak_rule
    stages = sorted({problem.tasks[use.task].stage for device in devices for use in device.uses})
    for order in islice(permutations(stages), MAX_STAGE_ORDERS):
        rank = {stage: place for place, stage in enumerate(order)}
        yield lambda index, task, rank=rank: (not task.is_release, rank.get(task.stage, -1), index)  # type: ignore[misc]
    for seed in range(RESTARTS):
        weights = np.random.default_rng(seed).random(len(problem.tasks))
        yield lambda index, task, weights=weights: (not task.never_grows, weights[index])  # type: ignore[misc]


def _too_small(problem: Problem, devices: Sequence[Device]) -> Blocked | None:
    """The first device that is too small for every order of the tasks on it alone."""
    order = place(replace(problem, usable_bytes=float("inf")), (), paper_rule)
    assert not isinstance(order, Blocked)
    ancestors = ancestors_of(problem.tasks, order)
    for device in devices:
        alone = _alone(problem, device, ancestors)
        only = (device._replace(uses=tuple(use._replace(task=i) for i, use in enumerate(device.uses))),)
        if not isinstance(place(alone, only, peak_rule), Blocked):
            continue
        needed = least_peak(alone, only[0])
        if needed is not None and needed.needed_bytes > problem.usable_bytes:
            return needed._replace(task=device.uses[needed.task].task)
    return None


def _alone(problem: Problem, device: Device, ancestors: Sequence[int]) -> Problem:
    """The tasks that use a device, with what they wait for of one another."""
    numbers = {use.task: index for index, use in enumerate(device.uses)}
    tasks: list[Task] = []
    for use in device.uses:
        after = frozenset(i for task, i in numbers.items() if ancestors[use.task] >> task & 1)
        takes, gives = {device.endpoint: use.takes}, {device.endpoint: use.gives}
        tasks.append(replace(problem.tasks[use.task], after=after, takes=takes, gives=gives))
    return replace(problem, tasks=tuple(tasks))


def least_peak(alone: Problem, device: Device) -> Blocked | None:
    """The fewest bytes with which some order of the tasks of one device gets by, and the task that needs them.

    The widest path through the sets of ended tasks: the level after a set does not depend on its order. None if there are
    too many sets.
    """
    needs = [sum(1 << before for before in task.after) for task in alone.tasks]
    net = [use.takes - use.gives for use in device.uses]
    everything = (1 << len(needs)) - 1
    heap: list[tuple[int, int, int, int, int]] = [(device.held, 0, 0, device.held, 0)]
    seen: set[int] = set()
    while heap and len(seen) < SUBSET_LIMIT:
        peak, _, done, level, worst = heapq.heappop(heap)
        if done == everything:
            return Blocked(worst, device.endpoint, peak)
        if done in seen:
            continue
        seen.add(done)
        for index, use in enumerate(device.uses):
            if done >> index & 1 or needs[index] & ~done:
                continue
            reached = level + use.takes
            after = done | 1 << index
            step = (reached, index) if reached > peak else (peak, worst)
            heapq.heappush(heap, (step[0], -after.bit_count(), after, level + net[index], step[1]))
    return None
