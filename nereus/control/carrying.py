"""One transition on its way, as a value: what has happened, what is waited for, and what to ask for next.

    quiesce -> digest before -> install -> move, as predecessors end -> digest after == before -> held Destroys -> bind

Nothing is committed before the digests agree. `advance` takes one fact; what belongs to another transition, or comes a
second time, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from nereus.control.effects import BindUnits, Effect, InstallPrograms, QuiesceUnits, RunOp, TakeDigests
from nereus.control.events import Committed, DigestsTaken, Event, Installed, OpCompleted, Quiesced
from nereus.emu.digest import BoxDigest, Digest, unit_digests
from nereus.emu.unit import Emu
from nereus.errors import DigestMismatch
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.layout import UNSHARDED
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Op, Program, Transition

QUIESCE_DEADLINE_S = 120.0
"""Until which an endpoint has to have ended what it computes: twice the time-out of a collective, since one that waits for a
peer that is gone fails by then. Shorter, a slow update would end transitions; longer, a hung one holds the loop."""


class Leg(IntEnum):
    """How far a transition has come."""

    QUIESCE = 0
    DIGEST_BEFORE = 1
    INSTALL = 2
    MOVE = 3
    DIGEST_AFTER = 4
    HELD = 5
    BIND = 6
    DONE = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be carried out."""

    epoch: int
    transition: Transition
    programs: tuple[Program, ...]
    before: tuple[Emu, ...]
    """The EMUs that change."""
    bound: tuple[Emu, ...]
    """All EMUs of the job after it."""
    keep: frozenset[GroupKey]
    """Communicators that stay after the commit."""

    @property
    def endpoints(self) -> tuple[EndpointId, ...]:
        return tuple(program.endpoint for program in self.programs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What the facts add up to."""

    setup_s: float = 0.0
    bytes_moved: int = 0
    groups_made: int = 0
    groups_reused: int = 0
    peak_bytes: int = 0


class Span(NamedTuple):
    """An operation in time, as the controller sees it."""

    began_s: float
    """When the first member took it up: a member that is asked may have others before it in its lane."""
    ended_s: float
    """When the last member had told of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrying:
    """A transition between two facts."""

    task: Task
    leg: Leg = Leg.QUIESCE
    waiting: frozenset[EndpointId] = frozenset()
    """Endpoints that have not answered yet; for operations, see `running`."""
    running: Mapping[str, frozenset[EndpointId]] = field(default_factory=dict)
    done: frozenset[str] = frozenset()
    boxes: tuple[tuple[UnitId, tuple[BoxDigest, ...]], ...] = ()
    """What has been hashed in this leg."""
    proof: Mapping[str, Digest] = field(default_factory=dict)
    """The digest of each model-stage before anything moved."""
    wrong: frozenset[UnitId] = frozenset()
    """Units whose logical state is not what it was."""
    fault: str = ""
    """What was found wrong with the first of them; nothing goes on then."""
    tally: Tally = field(default_factory=Tally)
    began_s: tuple[float, ...] = ()
    """When each leg began."""
    times: Mapping[str, Span] = field(default_factory=dict)
    """When each operation began and ended on the members that have answered."""

    def seconds(self, first: Leg, last: Leg) -> float:
        """Wall seconds from the begin of a leg to the begin of a later one."""
        return self.began_s[last] - self.began_s[first]


Step = tuple[Carrying, tuple[Effect, ...]]


def begin(task: Task, now_s: float, proof: Mapping[str, Digest] | None = None) -> Step:
    """Start a transition: what it changes comes to rest. `proof` has the digests of model-stages that are known already."""
    return _enter(Carrying(task=task, proof=proof or {}), Leg.QUIESCE, now_s)


def advance(carrying: Carrying, event: Event, states: Mapping[str, StateSpec], now_s: float) -> Step:
    """Take one fact in. Where the logical state is not what it was, `fault` says so, and nothing goes on."""
    task, tally = carrying.task, carrying.tally
    match event, carrying.leg:
        case DigestsTaken(tag=tag, endpoint=who), Leg.DIGEST_BEFORE | Leg.DIGEST_AFTER if (
            tag == _tag(task, carrying.leg) and who in carrying.waiting
        ):
            hashed = replace(carrying, boxes=(*carrying.boxes, *event.digests))
            answered = _answered(hashed, event.endpoint)
            return (answered, ()) if answered.waiting else _proved(answered, states, now_s)
        case Quiesced(epoch=task.epoch, endpoint=who), Leg.QUIESCE if who in carrying.waiting:
            answered = _answered(carrying, event.endpoint)
            return (answered, ()) if answered.waiting else _enter(answered, Leg.DIGEST_BEFORE, now_s)
        case Installed(epoch=task.epoch, endpoint=who), Leg.INSTALL if who in carrying.waiting:
            tally = replace(
                tally,
                setup_s=max(tally.setup_s, event.setup_s),
                groups_made=tally.groups_made + event.groups_made,
                groups_reused=tally.groups_reused + event.groups_reused,
            )
            answered = _answered(replace(carrying, tally=tally), event.endpoint)
            return (answered, ()) if answered.waiting else _enter(answered, Leg.MOVE, now_s)
        case OpCompleted(op=op, endpoint=who), Leg.MOVE | Leg.HELD if who in carrying.running.get(op, ()):
            tally = replace(tally, bytes_moved=tally.bytes_moved + event.bytes_received)
            began_s = now_s - event.seconds
            span = Span(min(began_s, carrying.times[op].began_s) if op in carrying.times else began_s, now_s)
            times = {**carrying.times, op: span}
            return _op_done(replace(carrying, tally=tally, times=times), op, event.endpoint, now_s)
        case Committed(epoch=task.epoch, endpoint=who), Leg.BIND if who in carrying.waiting:
            tally = replace(tally, peak_bytes=max(tally.peak_bytes, event.peak_bytes))
            answered = _answered(replace(carrying, tally=tally), event.endpoint)
            return (answered, ()) if answered.waiting else _enter(answered, Leg.DONE, now_s)
    return carrying, ()


def awaits(carrying: Carrying, call: str, endpoint: EndpointId) -> bool:
    """Whether a call on an endpoint is under way; `call` is named as in OpFailed."""
    if carrying.leg in (Leg.MOVE, Leg.HELD):
        return endpoint in carrying.running.get(call, ())
    epoch = carrying.task.epoch
    verbs = {Leg.QUIESCE: f"quiesce e{epoch}", Leg.INSTALL: f"install e{epoch}", Leg.BIND: f"bind e{epoch}"}
    return endpoint in carrying.waiting and call == verbs.get(carrying.leg, f"digest {_tag(carrying.task, carrying.leg)}")


def again(carrying: Carrying) -> tuple[Effect, ...]:
    """What the present leg has asked for, to be asked again after a restart."""
    task, leg = carrying.task, carrying.leg
    if leg is Leg.QUIESCE:
        return (QuiesceUnits(epoch=task.epoch, emus=task.before, deadline_s=QUIESCE_DEADLINE_S),)
    if leg in (Leg.DIGEST_BEFORE, Leg.DIGEST_AFTER):
        emus = task.before if leg is Leg.DIGEST_BEFORE else task.transition.result
        return (TakeDigests(tag=_tag(task, leg), emus=emus),)
    if leg is Leg.INSTALL:
        return (InstallPrograms(programs=task.programs),)
    if leg in (Leg.MOVE, Leg.HELD):
        return tuple(RunOp(op=op) for op in _ops(carrying) if op.id in carrying.running)
    return (BindUnits(epoch=task.epoch, emus=task.bound, endpoints=task.endpoints, keep=task.keep),)


def _enter(carrying: Carrying, leg: Leg, now_s: float) -> Step:
    """Begin a leg: ask for what it needs; a leg without anything to do is passed at once."""
    task = carrying.task
    at = replace(carrying, leg=leg, boxes=(), began_s=(*carrying.began_s, now_s))
    if leg in (Leg.MOVE, Leg.HELD):
        started, effects = _start_ready(at)
        return (started, effects) if started.running else _enter(started, Leg(leg + 1), now_s)
    if leg is Leg.DONE:
        return at, ()
    if leg in (Leg.QUIESCE, Leg.DIGEST_BEFORE, Leg.DIGEST_AFTER):
        emus = task.transition.result if leg is Leg.DIGEST_AFTER else task.before
        waiting = frozenset(endpoint for emu in emus for endpoint in emu.endpoints)
    else:
        waiting = frozenset(task.endpoints)
    if not waiting:
        return _enter(at, Leg(leg + 1), now_s)
    asked = replace(at, waiting=waiting)
    return asked, again(asked)


def _answered(carrying: Carrying, endpoint: EndpointId) -> Carrying:
    return replace(carrying, waiting=carrying.waiting - {endpoint})


def _ops(carrying: Carrying) -> tuple[Op, ...]:
    """The operations of the leg."""
    transition = carrying.task.transition
    return transition.moving if carrying.leg is Leg.MOVE else transition.held


def _start_ready(carrying: Carrying) -> Step:
    """Start every operation whose predecessors have completed on all their members, in the order of dispatch.

    No endpoint gets one before those ahead of it, although it may be ready: its lane would be taken when a longer chain
    needs it. All lanes follow one order, so none waits for another in a circle.
    """
    ready: list[Op] = []
    taken: set[EndpointId] = set()
    for op in _ops(carrying):
        if op.id in carrying.done or op.id in carrying.running:
            continue
        if set(op.after) <= carrying.done and taken.isdisjoint(op.members):
            ready.append(op)
        else:
            taken.update(op.members)
    running = {**carrying.running, **{op.id: frozenset(op.members) for op in ready}}
    return replace(carrying, running=running), tuple(RunOp(op=op) for op in ready)


def _op_done(carrying: Carrying, op: str, endpoint: EndpointId, now_s: float) -> Step:
    left = carrying.running[op] - {endpoint}
    running = {name: members for name, members in carrying.running.items() if name != op}
    if left:
        return replace(carrying, running={**running, op: left}), ()
    started, effects = _start_ready(replace(carrying, running=running, done=carrying.done | {op}))
    return (started, effects) if started.running else _enter(started, Leg(carrying.leg + 1), now_s)


def _proved(carrying: Carrying, states: Mapping[str, StateSpec], now_s: float) -> Step:
    """All digests of a leg are there: keep them, or compare them with those before."""
    proof = dict(carrying.proof)
    task = carrying.task
    emus = task.before if carrying.leg is Leg.DIGEST_BEFORE else task.transition.result
    wrong: dict[UnitId, str] = {}
    for unit, digest in _unit_digests(carrying.boxes, emus, states).items():
        if isinstance(digest, str):
            wrong[unit] = digest
            continue
        expected = proof.setdefault(unit.stage, digest)
        if digest != expected:
            refs = sorted(str(ref) for ref in expected if digest.get(ref) != expected[ref])
            wrong[unit] = f"{unit}: {len(refs)} tensors are not what they were, first {refs[0]}"
    if wrong:
        return replace(carrying, wrong=frozenset(wrong), fault=next(iter(wrong.values()))), ()
    return _enter(replace(carrying, proof=proof), Leg(carrying.leg + 1), now_s)


def _unit_digests(
    boxes: Iterable[tuple[UnitId, tuple[BoxDigest, ...]]], emus: Iterable[Emu], states: Mapping[str, StateSpec]
) -> dict[UnitId, Digest | str]:
    """The digest of each unit, or what is wrong with it."""
    by_stage: dict[str, dict[UnitId, list[BoxDigest]]] = {}
    for unit, digests in boxes:
        by_stage.setdefault(unit.stage, {}).setdefault(unit, []).extend(digests)
    sharded = {emu.stage for emu in emus if emu.optimizer != UNSHARDED}
    found: dict[UnitId, Digest | str] = {}
    for stage, units in by_stage.items():
        shapes = {tensor.ref: tensor.shape for tensor in states[stage].tensors}
        # Units that share nothing are judged one by one, so that a damaged one does not hide that others are whole.
        for together in [units] if stage in sharded else [{unit: held} for unit, held in units.items()]:
            try:
                found.update(unit_digests(together, shapes, sharded=stage in sharded))
            except DigestMismatch as error:
                found.update(dict.fromkeys(together, f"{next(iter(together))}: {error}"))
    return found


def _tag(task: Task, leg: Leg) -> str:
    return f"e{task.epoch}.{'before' if leg is Leg.DIGEST_BEFORE else 'after'}"
