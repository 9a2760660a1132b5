"""Whether a transition fits in memory, checked before anything moves (paper, section 4.3).

    operations -> what each takes and gives back -> an order in which they fit -> edges that keep it under any timing
               -> or streams for what is in the way -> or refused, with the device and the bytes

used(device) = every unit on it now, + units that operations open, + buffers, - what Destroys and streams release. Shards
that change hands are counted once, other inputs live until the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.moves import NodeOf
from nereus.transition.arranging import quickest
from nereus.transition.estimate import LinkRates, tasks_of
from nereus.transition.memory import Held
from nereus.transition.ops import Op, Transition
from nereus.transition.searching import Outcome, ordered
from nereus.transition.streaming import streamed
from nereus.transition.tasks import Problem, Task
from nereus.transition.verdicts import Found


@dataclass(frozen=True, slots=True)
class MemoryViolation:
    """The first operation that does not fit; where a device is too small for any order, the fewest bytes of all orders."""

    endpoint: EndpointId
    op: str
    needed_bytes: int
    usable_bytes: int

    def __str__(self) -> str:
        return f"{self.op} needs {self.needed_bytes} bytes on {self.endpoint}, {self.usable_bytes} are usable"


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """The peak of each endpoint over a transition, and what does not fit, if anything."""

    peak_bytes: Mapping[EndpointId, int]
    violation: MemoryViolation | None


def check_memory(
    transition: Transition, current: Iterable[Emu], states: Mapping[str, StateSpec], usable_bytes: float
) -> MemoryCheck:
    """Walk through the operations in the order in which they are submitted."""
    held = Held.of(current, states)
    peak = dict(held.used)
    for op in (*transition.moving, *transition.held):
        for endpoint, demand in held.run(op).items():
            peak[endpoint] = max(peak.get(endpoint, 0), demand.peak)
            if demand.peak > usable_bytes:
                return MemoryCheck(peak, MemoryViolation(endpoint, op.id, demand.peak, int(usable_bytes)))
    return MemoryCheck(peak, None)


@dataclass(frozen=True, slots=True)
class Pace:
    """What durations follow from."""

    rates: LinkRates = field(default_factory=LinkRates)
    node_of: NodeOf = field(default_factory=dict)


DEFAULT_PACE = Pace()
"""Rates of links that were not measured, all endpoints on one node: an order for them is safe, if not the quickest."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Operations that may be streams, as tasks, and the order in which they fit, if there is one."""

    transition: Transition
    problem: Problem
    outcome: Outcome


def fitted(
    transition: Transition,
    current: Iterable[Emu],
    states: Mapping[str, StateSpec],
    usable_bytes: float,
    pace: Pace = DEFAULT_PACE,
) -> tuple[Transition, MemoryCheck]:
    """The transition in the quickest order found in which it fits, with as many streams as that takes, and its check.

    Each operation waits for the releases that make room for it, so that it fits whatever runs at the same time.
    """
    standing = tuple(current)
    choice = chosen(transition, standing, states, usable_bytes, pace)
    blocked = choice.outcome.blocked
    if blocked is None:
        found = arranged(choice)
        return found, check_memory(found, standing, states, usable_bytes)
    refused = replace(choice.transition, found=choice.outcome.found)
    op = refused.ops[blocked.task]
    violation = MemoryViolation(blocked.endpoint, op.id, blocked.needed_bytes, int(usable_bytes))
    return refused, MemoryCheck(check_memory(refused, standing, states, float("inf")).peak_bytes, violation)


def chosen(
    transition: Transition,
    current: Iterable[Emu],
    states: Mapping[str, StateSpec],
    usable_bytes: float,
    pace: Pace = DEFAULT_PACE,
) -> Choice:
    """The operations with streams where no order fits without; the last choice there is, if none fits."""
    standing = tuple(current)
    while True:
        problem = problem_of(transition, standing, states, usable_bytes, pace)
        outcome = ordered(problem)
        blocked = outcome.blocked
        if blocked is None:
            return Choice(transition, problem, outcome)
        op = transition.ops[blocked.task]
        # What is in the way may be an operation before the one that does not fit. Those of a model-stage are alike.
        could = [other for other in transition.ops if other.makes and other.stream is None]
        stages = {other.stage for other in could if other.id == op.id} or {
            other.stage for other in could if blocked.endpoint in other.members
        }
        if not stages:
            return Choice(transition, problem, outcome)
        transition = streamed(transition, stages, standing, states)
        transition = replace(transition, found=transition.found.or_worse(Found.RE_CHOSEN))


def problem_of(
    transition: Transition,
    current: Iterable[Emu],
    states: Mapping[str, StateSpec],
    usable_bytes: float,
    pace: Pace = DEFAULT_PACE,
) -> Problem:
    """The operations of a transition as tasks that take and give back memory, and time."""
    held = Held.of(current, states)
    before = dict(held.used)
    tasks: list[Task] = []
    for op, timed in zip(transition.ops, tasks_of(transition.ops, pace.rates, pace.node_of), strict=True):
        demands = held.run(op)
        takes = {endpoint: d.peak - d.before for endpoint, d in demands.items() if d.peak > d.before}
        gives = {endpoint: d.peak - d.after for endpoint, d in demands.items() if d.peak > d.after}
        tasks.append(replace(timed, takes=takes, gives=gives))
    return Problem(tuple(tasks), before, usable_bytes)


def arranged(choice: Choice) -> Transition:
    """The operations in their order of dispatch, each after the releases that make room for it as well."""
    transition, outcome = choice.transition, choice.outcome
    arrangement = quickest(choice.problem, outcome.order)

    def waiting(index: int) -> Op:
        op = transition.ops[index]
        room = {transition.ops[before].id for before in arrangement.after[index]} - set(op.after)
        return replace(op, after=tuple(sorted({*op.after, *room}))) if room else op

    ops = tuple(waiting(index) for index in arrangement.schedule.order)
    return replace(transition, ops=ops, found=transition.found.or_worse(outcome.found))
