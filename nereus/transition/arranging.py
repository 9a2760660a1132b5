"""Which of the orders that fit takes least time, with the edges that make it safe.

    schedule without memory -> fits? then it is the answer
                            -> else: the best schedule under memory -> edges -> schedules -> shortest
                               (or, where all of them come to a stop, the order that was found)

Memory forbids nothing that is not waited for: the edges of a schedule that fits are waits for releases that are over in it,
so they make it no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from nereus.transition.bounds import Bounds
from nereus.transition.dispatch import passes_for, priorities, shortest
from nereus.transition.gating import Memory, fits, gated
from nereus.transition.lanes import CLOSE, Columns, Schedule, Waits
from nereus.transition.ordering import resource_edges
from nereus.transition.tasks import Device, Order, Problem, binding

MAX_GATED = 12
"""Schedules under memory that are made of a small transition."""


class Arrangement(NamedTuple):
    """What each task waits for, the releases that make room for it included, and when it starts."""

    after: tuple[frozenset[int], ...]
    schedule: Schedule


def quickest(problem: Problem, order: Order) -> Arrangement:
    """The best arrangement that was found; `order` is one in which the tasks fit."""
    devices, columns = binding(problem), Columns.of(problem.tasks)
    waits = Waits.of([task.after for task in problem.tasks], order)
    free = shortest(columns, waits)
    if fits(columns, devices, problem.usable_bytes, free):
        return Arrangement(_after(problem, devices, free.order, columns.ends(free)), free)
    under_memory = list(_gated(problem, devices, columns, waits, free.seconds))
    if under_memory:
        best = min(under_memory, key=lambda schedule: schedule.seconds)
        after = _after(problem, devices, best.order, columns.ends(best))
        if best.seconds > free.seconds + CLOSE:
            best = min(best, shortest(columns, Waits.of(after, best.order)), key=lambda schedule: schedule.seconds)
        return Arrangement(after, best)
    after = _after(problem, devices, order, None)
    return Arrangement(after, shortest(columns, Waits.of(after, order)))


def _gated(problem: Problem, devices: Sequence[Device], columns: Columns, waits: Waits, least: float) -> Iterator[Schedule]:
    """Schedules under memory by several priorities; the last is one that takes no longer than the least."""
    memory = Memory.of(devices, len(problem.tasks), problem.usable_bytes)
    passes = min(MAX_GATED, 2 + passes_for(columns))
    for priority in islice(priorities(columns, waits, Bounds(columns, waits).tails), passes):
        schedule = gated(columns, waits, priority, memory)
        if schedule is not None:
            yield schedule
            if schedule.seconds <= least + CLOSE:
                return


def _after(
    problem: Problem, devices: Sequence[Device], order: Order, ends: list[float] | None
) -> tuple[frozenset[int], ...]:
    edges = resource_edges(problem, devices, order, ends)
    return tuple(task.after | edges.get(index, frozenset()) for index, task in enumerate(problem.tasks))
