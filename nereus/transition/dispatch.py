"""When each operation starts: one at a time on a device, uplinks shared out, and the order of dispatch that is shortest.

    columns + waits -> schedules by different priorities -> one proved the shortest, or the best -> its order of starts

Started whenever they are ready, operations never wait for a more urgent one, and the transition takes longer. So a schedule
is made first: task by task in the order of a priority, each at the earliest moment that is free on all of its devices. The
order of its starts is the dispatch order, which every device's lane keeps: one global order, so no two wait for each other.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, count, islice

import numpy as np

from nereus.transition.bounds import Bounds
from nereus.transition.gating import gated
from nereus.transition.lanes import CLOSE, Columns, Schedule, Uplinks, Waits, first_gap

MAX_PASSES = 40
"""Schedules made of a small transition, unless one is proved the shortest before."""

PASSED_TASKS = 2_200
"""Tasks scheduled over all passes together, so that a thousand devices are ordered in milliseconds."""

FIRST_PASSES = 5
"""Schedules made of any transition, however large."""

URGED_PASSES = 14
"""Of the schedules, those that learn from the one before: the gaps that these close are closed within ten."""

STALE = 3
"""Rounds of other priorities after which there is an end if none was shorter and the best is `NEAR` its bound: of 324
generated transitions one is longer than after all rounds, by half a percent. Schedules that learn have no such end."""

NEAR = 1.1
"""Of the bound. Farther away a shorter one is likely: once it took half of the seconds, and five rounds to be found."""

URGENCY = 0.3
"""Of the schedule's seconds: by how much more urgent a task becomes that was kept waiting; 0.1 and 1.0 learn more slowly."""


def shortest(columns: Columns, waits: Waits) -> Schedule:
    """The shortest schedule that was found."""
    bounds, backward = Bounds(columns, waits), waits.backward()
    ways = priorities(columns, waits, bounds.tails)
    first = next(ways)
    best, proved = _urged(columns, waits, bounds, first)
    rounds, stale = max(0, (passes_for(columns) - URGED_PASSES + 3) // 4), 0
    for priority in islice(chain([first], ways), 0 if proved else rounds):
        stale += 1
        for found in _round(columns, waits, backward, priority):
            if found.seconds < best.seconds - CLOSE:
                best, stale = found, 0
                if bounds.prove(found):
                    return best
        if stale >= STALE and best.seconds <= NEAR * bounds.least:
            break
    return best


def _round(columns: Columns, waits: Waits, backward: Waits, priority: Sequence[float]) -> Iterator[Schedule]:
    """Three schedules of one priority."""
    found = _scheduled(columns, waits, priority)
    yield found
    # Justified: all as late as the end allows, the last first, then as early as that order allows.
    late = _scheduled(columns, backward, columns.ends(found))
    yield _scheduled(columns, waits, columns.ends(late))
    at_once = gated(columns, waits, priority)
    assert at_once is not None
    yield at_once


def _urged(columns: Columns, waits: Waits, bounds: Bounds, first: Sequence[float]) -> tuple[Schedule, bool]:
    """Schedules that learn: what a lane or an uplink kept waiting on the critical chain is more urgent in the next one.

    `first` is the priority of the first one. The shortest of them, and whether it is proved that there is none shorter.
    """
    priority = list(first)
    best: Schedule | None = None
    for _ in range(max(FIRST_PASSES, min(URGED_PASSES, passes_for(columns)))):
        found = gated(columns, waits, priority)
        assert found is not None
        if best is None or found.seconds < best.seconds - CLOSE:
            best = found
            if bounds.prove(found):
                return found, True
        for index in _kept_waiting(columns, waits, found):
            priority[index] += URGENCY * found.seconds
    assert best is not None
    return best, False


def _kept_waiting(columns: Columns, waits: Waits, schedule: Schedule) -> list[int]:
    """The tasks of the chain that ends last which did not start when all that they wait for had ended."""
    starts, ends = schedule.starts, columns.ends(schedule)
    ended: defaultdict[int, list[int]] = defaultdict(list)
    for index, end in enumerate(ends):
        ended[round(end / CLOSE)].append(index)
    index = max(range(len(ends)), key=ends.__getitem__)
    found: list[int] = []
    while starts[index] > CLOSE:
        just = [j for j in ended[round(starts[index] / CLOSE)] if j != index and starts[j] < starts[index]]
        before = [j for j in just if j in waits.after[index]]
        if not before:
            found.append(index)
            links = {link for link, _ in columns.links[index]}
            before = [
                j
                for j in just
                if columns.masks[index] & columns.masks[j] or any(link in links for link, _ in columns.links[j])
            ]
        if not before:
            break
        index = max(before, key=columns.seconds.__getitem__)
    return found


def passes_for(columns: Columns) -> int:
    """How many schedules are made of so many tasks at most."""
    return max(1, min(MAX_PASSES, PASSED_TASKS // max(1, len(columns.seconds))))


def priorities(columns: Columns, waits: Waits, tails: Sequence[float]) -> Iterator[Sequence[float]]:
    """What is urgent: a long chain, with the load of the busiest lane or uplink; the order given; both shaken, seeded."""
    of_lane, of_link = [0.0] * columns.num_lanes, [0.0] * columns.num_links
    for seconds, lanes, links in zip(columns.seconds, columns.lanes, columns.links, strict=True):
        for lane in lanes:
            of_lane[lane] += seconds
        for link, share in links:
            of_link[link] += share * seconds
    both = []
    for tail, lanes, links in zip(tails, columns.lanes, columns.links, strict=True):
        both.append(tail + max([of_lane[lane] for lane in lanes] + [of_link[link] for link, _ in links], default=0.0))
    yield both
    position = [0.0] * len(tails)
    for place, index in enumerate(waits.order):
        position[index] = -float(place)
    yield position
    yield tails
    random = np.random.default_rng(0)
    for sample in count():
        base, spread = np.array(both if sample % 2 else tails), (0.5, 2.0)[sample // 2 % 2]
        yield (base * np.exp(random.normal(0.0, spread, len(base)))).tolist()


def _scheduled(columns: Columns, waits: Waits, priority: Sequence[float]) -> Schedule:
    """Task by task, the most urgent of the ready ones first, each into the earliest gap that holds it."""
    seconds, lanes, links = columns.seconds, columns.lanes, columns.links
    busy: list[list[tuple[float, float]]] = [[] for _ in range(columns.num_lanes)]
    uplinks = Uplinks()
    missing = [len(before) for before in waits.after]
    ready = [(-priority[index], index) for index, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    starts, placed = [0.0] * len(seconds), list[int]()
    while ready:
        _, index = heapq.heappop(ready)
        start, own = max([starts[b] + seconds[b] for b in waits.after[index]], default=0.0), seconds[index]
        taken = [busy[lane] for lane in lanes[index]]
        start = first_gap(taken, start, own)
        while links[index] and (room := uplinks.first_room(links[index], start, own)) > start + CLOSE:
            start = first_gap(taken, room, own)
        starts[index] = start
        placed.append(index)
        uplinks.take(links[index], start, own)
        for lane in taken:
            insort(lane, (start, start + own))
        for follower in waits.followers[index]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, (-priority[follower], follower))
    position = {index: place for place, index in enumerate(placed)}
    end = max([start + own for start, own in zip(starts, seconds, strict=True)], default=0.0)
    return Schedule(tuple(starts), end, sorted(placed, key=lambda index: (starts[index], position[index])))
