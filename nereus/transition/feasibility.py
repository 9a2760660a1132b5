"""Whether a transition fits in memory, checked before anything moves (paper, section 4.3).

    operations -> what each takes and gives back -> an order in which they fit -> edges that keep it under any timing
               -> or streams for what is in the way -> or refused, with the device and the bytes

used(device) = every unit on it now, + units that operations open, + buffers, - what Destroys and streams release. Shards
that change hands are counted once, other inputs live until the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.memory import Held
from nereus.transition.ops import Op, Transition
from nereus.transition.ordering import resource_edges
from nereus.transition.searching import ordered
from nereus.transition.streaming import streamed
from nereus.transition.tasks import Order, Problem, Task, binding
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


def fitted(
    transition: Transition, current: Iterable[Emu], states: Mapping[str, StateSpec], usable_bytes: float
) -> tuple[Transition, MemoryCheck]:
    """The transition in an order in which it fits, with as many operations as streams as that takes, and its check.

    Each operation waits for the releases that make room for it, so that it fits whatever runs at the same time.
    """
    standing = tuple(current)
    found = transition.found
    while True:
        problem = problem_of(transition, standing, states, usable_bytes)
        outcome = ordered(problem)
        if outcome.blocked is None:
            moved = _arranged(transition, problem, outcome.order, found.or_worse(outcome.found))
            return moved, check_memory(moved, standing, states, usable_bytes)
        blocked = outcome.blocked
        op = transition.ops[blocked.task]
        # What is in the way may be an operation before the one that does not fit. Those of a model-stage are alike.
        could = [other for other in transition.ops if other.makes and other.stream is None]
        stages = {other.stage for other in could if other.id == op.id} or {
            other.stage for other in could if blocked.endpoint in other.members
        }
        if not stages:
            violation = MemoryViolation(blocked.endpoint, op.id, blocked.needed_bytes, int(usable_bytes))
            peaks = check_memory(transition, standing, states, float("inf")).peak_bytes
            return replace(transition, found=outcome.found), MemoryCheck(peaks, violation)
        transition = streamed(transition, stages, standing, states)
        found = found.or_worse(Found.RE_CHOSEN)


def problem_of(
    transition: Transition, current: Iterable[Emu], states: Mapping[str, StateSpec], usable_bytes: float
) -> Problem:
    """The operations of a transition as tasks that take and give back memory."""
    held = Held.of(current, states)
    before = dict(held.used)
    number = {op.id: index for index, op in enumerate(transition.ops)}
    tasks: list[Task] = []
    for op in transition.ops:
        demands = held.run(op)
        takes = {endpoint: d.peak - d.before for endpoint, d in demands.items() if d.peak > d.before}
        gives = {endpoint: d.peak - d.after for endpoint, d in demands.items() if d.peak > d.after}
        after = frozenset(number[name] for name in op.after)
        tasks.append(Task(op.stage, op.is_release, op.members, after, takes, gives))
    return Problem(tuple(tasks), before, usable_bytes)


def _arranged(transition: Transition, problem: Problem, order: Order, found: Found) -> Transition:
    """The operations in an order, each after the releases that make room for it as well."""
    edges = resource_edges(problem, binding(problem), order)

    def waiting(index: int) -> Op:
        op = transition.ops[index]
        room = {transition.ops[before].id for before in edges.get(index, ())}
        return replace(op, after=tuple(sorted({*op.after, *room}))) if room else op

    return replace(transition, ops=tuple(waiting(index) for index in order), found=found)
