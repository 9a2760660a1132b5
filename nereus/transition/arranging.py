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

from nereus.transition.dispatch import passes_for, priorities, shortest
from nereus.transition.gating import fits, gated
from nereus.transition.lanes import CLOSE, Schedule, lanes_of
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
    tasks, devices, lanes = problem.tasks, binding(problem), lanes_of(problem.tasks)
    free = shortest(tasks, tuple(task.after for task in tasks), order, lanes)
    if fits(problem, devices, free):
        return Arrangement(_waits(problem, devices, free.order, _ends(problem, free)), free)
    under_memory = list(_gated(problem, devices, lanes, order))
    if under_memory:
        best = min(under_memory, key=lambda schedule: schedule.seconds)
        after = _waits(problem, devices, best.order, _ends(problem, best))
        again = shortest(tasks, after, best.order, lanes) if best.seconds > free.seconds + CLOSE else best
        return Arrangement(after, min(best, again, key=lambda schedule: schedule.seconds))
    after = _waits(problem, devices, order, None)
    return Arrangement(after, shortest(tasks, after, order, lanes))


def _gated(problem: Problem, devices: Sequence[Device], lanes: list[list[int]], order: Order) -> Iterator[Schedule]:
    """Schedules under memory by several priorities."""
    tasks, passes = problem.tasks, min(MAX_GATED, 2 + passes_for(problem.tasks))
    after = [task.after for task in tasks]
    for priority in islice(priorities(tasks, order, lanes), passes):
        schedule = gated(tasks, after, lanes, priority, devices, problem.usable_bytes)
        if schedule is not None:
            yield schedule


def _ends(problem: Problem, schedule: Schedule) -> list[float]:
    return [start + task.seconds for start, task in zip(schedule.starts, problem.tasks, strict=True)]


def _waits(
    problem: Problem, devices: Sequence[Device], order: Order, ends: list[float] | None
) -> tuple[frozenset[int], ...]:
    edges = resource_edges(problem, devices, order, ends)
    return tuple(task.after | edges.get(index, frozenset()) for index, task in enumerate(problem.tasks))
