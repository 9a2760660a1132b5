"""A job, its endpoints, checkpoints and planner in one process: all ports, for the runtime's tests.

    verb -> log, and one pending fact per endpoint -> next_fact delivers them in any order -> the last one of an op moves

An operation takes effect only when its last member's completion is delivered, so whoever starts a successor too early reads
what has not landed, and the interpreter refuses that. Faults are a script, counted, so that a test proves that they fired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from nereus.control.checkpoint import StageDigests
from nereus.control.events import (
    Committed,
    DeviceReady,
    DigestsTaken,
    EndpointDied,
    Event,
    Installed,
    OpCompleted,
    OpFailed,
    PlanReady,
    Quiesced,
    Seeded,
    Settled,
    StateRead,
    StateSealed,
    StateWritten,
)
from nereus.control.report import Release
from nereus.control.state import JobConfig
from nereus.emu.digest import BoxDigest, Sums
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, UnitId
from nereus.layout.saving import shares
from nereus.layout.tensors import Kind, TensorRef
from nereus.policy.proposal import propose
from nereus.policy.snapshot import Snapshot
from nereus.transition.collectives import AllGather, Exchange, GroupKey
from nereus.transition.ops import Op, Program
from tests.builders import Values, global_values, rank_masks
from tests.transition.interpreter import Interpreter, at

SETUP_S = 0.25
"""What an endpoint says that making its communicators took, times the number of its device plus one."""

PEAK_BYTES = 1000
"""What an endpoint says that the peak of its memory was, times the number of its device plus one."""

PEAK_FLOPS = 1e11
"""What an endpoint says that its core reaches, less a little for each device."""

FACT_S = 0.005
"""Virtual seconds from one fact to the next."""


class Faults:
    """What goes wrong, once each.

    At a verb (`install`, `digest`, `bind`, `seed`, `spawn`), or at an operation with a primitive (`Split`).
    """

    def __init__(self) -> None:
        self._planned: dict[tuple[EndpointId, str], str] = {}
        self._corrupted: dict[str, TensorRef] = {}
        self.fired: list[tuple[str, EndpointId, str]] = []

    def fail(self, endpoint: EndpointId, at: str) -> Faults:
        """The endpoint answers with an error."""
        self._planned[endpoint, at] = "fail"
        return self

    def lose(self, endpoint: EndpointId, at: str) -> Faults:
        """The endpoint's process dies instead of answering."""
        self._planned[endpoint, at] = "lose"
        return self

    def corrupt(self, primitive: str, ref: TensorRef) -> Faults:
        """One element of the first unit that such an operation makes is wrong, on one endpoint that holds some of it."""
        self._corrupted[primitive] = ref
        return self

    def take(self, endpoint: EndpointId, *doing: str) -> tuple[str, str]:
        """What happens to this endpoint at one of these, and at which; nothing happens twice."""
        for where in dict.fromkeys(doing):
            kind = self._planned.pop((endpoint, where), "")
            if kind:
                self.fired.append((kind, endpoint, where))
                return kind, where
        return "", doing[0]

    def take_corruption(self, op: Op) -> TensorRef | None:
        found = [self._corrupted.pop(primitive) for primitive in op.primitives if primitive in self._corrupted]
        return found[0] if found else None


@dataclass(frozen=True)
class Call:
    """A verb as it was called."""

    verb: str
    about: object


@dataclass
class _Endpoint:
    """What one process knows beside its shards."""

    ops: dict[str, Op] = field(default_factory=dict)
    groups: set[GroupKey] = field(default_factory=set)
    programs: list[Program] = field(default_factory=list)


class World:
    """All ports of one job. `shards[stage]` are the units as they stand; `log` is every call and every delivered fact.

    Without `holds_values` units are names only: operations finish, digests count elements, and nothing is computed.
    """

    def __init__(
        self,
        config: JobConfig,
        *,
        faults: Faults | None = None,
        order: Random | None = None,
        plan_boundaries: int = 0,
        holds_values: bool = True,
    ) -> None:
        """`plan_boundaries`: after how many boundaries the planner's answer comes; 0 is at once."""
        self.config, self.faults, self.holds_values = config, faults or Faults(), holds_values
        self.shards = {stage: Interpreter(state, ()) for stage, state in config.states.items()}
        self.values = {stage: global_values(state) if holds_values else {} for stage, state in config.states.items()}
        """What the logical state of each model-stage should be."""
        self.endpoints: dict[EndpointId, _Endpoint] = {}
        self.bound: tuple[Emu, ...] = ()
        self.log: list[Call | Event] = []
        self.dead: set[EndpointId] = set()
        self.released: Release | None = None
        self.stopped: str | None = None
        self.boundary = 0
        self.now_s = 1000.0
        self._order, self._plan_boundaries = order, plan_boundaries
        self._pending: list[Event] = []
        self._planned: tuple[int, PlanReady] | None = None
        self._running: dict[str, tuple[Op, set[EndpointId]]] = {}
        self._done: set[str] = set()
        self._done_by: set[tuple[EndpointId, str]] = set()
        """Which endpoint has done its part of which operation."""
        self._births: dict[DeviceId, int] = {}
        self._written: dict[str, dict[str, dict[TensorRef, Values]]] = {}
        """What the shares of an unfinished save hold, by tag and model-stage; -1 where nothing is written."""
        self.checkpoints: dict[str, dict[str, dict[TensorRef, Values]]] = {}
        """What finished ones hold, by folder."""

    # What tests ask

    def clock(self) -> float:
        return self.now_s

    def calls(self, verb: str) -> list[object]:
        """What a verb was called about, in order."""
        return [entry.about for entry in self.log if isinstance(entry, Call) and entry.verb == verb]

    def units(self) -> set[tuple[EndpointId, UnitId]]:
        """Which endpoint holds a part of which unit."""
        return {key for stage in self.shards.values() for key in stage.shards}

    def wrong(self, emus: Iterable[Emu]) -> list[str]:
        """The shards of these units that are not those of the logical state, cut afresh by the reference."""
        found = []
        for emu in emus:
            held = self.shards[emu.stage].shards
            for endpoint, tensor, mask in rank_masks(self.config.states[emu.stage], emu):
                expected = np.where(mask, self.values[emu.stage][tensor.ref], -1)
                if not np.array_equal(held[endpoint, emu.unit][tensor.ref], expected):
                    found.append(f"{emu.unit} {tensor.ref} on {endpoint}")
        return found

    # What the loop does

    def train(self) -> None:
        """An update: every parameter of every bound training unit grows by one."""
        trains = self.config.trains
        for (endpoint, unit), tensors in self.shards[trains].shards.items():
            assert any(unit == emu.unit and endpoint in emu.endpoints for emu in self.bound)
            for ref, held in tensors.items():
                if ref.kind is Kind.PARAMETER:
                    held[held >= 0] += 1
        for ref, whole in self.values[trains].items():
            if ref.kind is Kind.PARAMETER:
                whole += 1

    def sync(self, release: Release) -> None:
        """Carry out the installed weight sync: every member does its part."""
        trains, generates = self.config.trains, self.config.generates
        moves = [
            move
            for name in release.sync_members
            if (op := self.endpoints[name].ops.get(release.sync_op)) is not None
            for move in (*op.copies, *_received(op, name))
        ]
        for move in sorted(moves, key=lambda move: move.wave):
            source = self.shards[generates if move.wave else trains].shards[move.source]
            target = self.shards[generates].shards[move.target]
            for tensor in move.tensors:
                target[tensor.ref][at(move.box)] = source[tensor.ref][at(move.box)]
        for ref in self.values[generates]:
            self.values[generates][ref] = self.values[trains][ref].copy()

    def next_fact(self, *, wait: bool = True) -> Event | None:
        """The next fact; None when there is none. The planner's answer comes when it is due, or when all else waits."""
        if self._planned is not None and self._planned[0] <= self.boundary:
            self._pending.append(self._planned[1])
            self._planned = None
        if not self._pending and wait and self._planned is not None:
            self._pending.append(self._planned[1])
            self._planned = None
        if not self._pending:
            return None
        fact = self._pending.pop(self._order.randrange(len(self._pending)) if self._order else 0)
        if isinstance(fact, OpCompleted) and fact.op in self._running:
            self._land(fact)
        self.now_s += FACT_S
        self.log.append(fact)
        return fact

    def _land(self, fact: OpCompleted) -> None:
        """One member has done its part; the last one makes the operation take effect."""
        op, waiting = self._running[fact.op]
        self._done_by.add((fact.endpoint, fact.op))
        waiting.discard(fact.endpoint)
        if not waiting:
            self._carry_out(op)

    def go_back(self, folder: str) -> None:
        """The job stands where a checkpoint does: what its state should be is what was saved."""
        if self.holds_values:
            self.values = {s: {ref: v.copy() for ref, v in held.items()} for s, held in self.checkpoints[folder].items()}

    def forget(self) -> None:
        """The controller died, and with it every answer that was on its way."""
        self._pending.clear()
        self._planned = None

    def kill(self, endpoint: EndpointId, during: str) -> None:
        """A process dies now, with its shards and with the answers that it has not sent; the head hears of it in time."""
        self.dead.add(endpoint)
        self._pending = [fact for fact in self._pending if getattr(fact, "endpoint", None) != endpoint]
        for op in [op for op, members in self._running.values() if endpoint in op.members]:
            del self._running[op.id]
            self._pending = [
                OpFailed(endpoint=fact.endpoint, op=op.id, error="a peer is gone")
                if isinstance(fact, OpCompleted) and fact.op == op.id
                else fact
                for fact in self._pending
            ]
        self._pending.append(EndpointDied(endpoint=endpoint, during=during))
        self._drop(endpoint)

    def fail(self, endpoint: EndpointId, call: str) -> None:
        """A call that is under way on an endpoint fails instead of being answered."""
        answers = [f for f in self._pending if getattr(f, "endpoint", None) == endpoint and _called(f, "") == call]
        self._pending = [f for f in self._pending if f not in answers]
        self._pending.insert(0, OpFailed(endpoint=endpoint, op=call, error="the disk is on fire"))

    def _drop(self, endpoint: EndpointId) -> None:
        for stage in self.shards.values():
            for key in [key for key in stage.shards if key[0] == endpoint]:
                del stage.shards[key]

    # JobPort

    def seed(self, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        self.log.append(Call("seed", units))
        for emu in units:
            held = self.shards[emu.stage].shards
            for endpoint in emu.endpoints:
                held.setdefault((endpoint, emu.unit), {})
            if self.holds_values:
                for endpoint, tensor, mask in rank_masks(self.config.states[emu.stage], emu):
                    whole = self.values[emu.stage][tensor.ref]
                    held[endpoint, emu.unit].setdefault(tensor.ref, np.where(mask, whole, -1))
        for endpoint in _endpoints(units):
            self._answer(endpoint, "seed", fact=Seeded(endpoint=endpoint))

    def spawn(self, devices: Iterable[DeviceId]) -> None:
        started = tuple(devices)
        self.log.append(Call("spawn", started))
        for device in started:
            endpoint = f"d{device}.{self._births.get(device, 0)}"
            self.endpoints.setdefault(endpoint, _Endpoint())
            flops = PEAK_FLOPS * (1 - 0.01 * device)
            self._answer(endpoint, "spawn", fact=DeviceReady(device=device, endpoint=endpoint, peak_flops=flops))

    def retire(self, endpoints: Iterable[EndpointId]) -> None:
        gone = tuple(endpoints)
        self.log.append(Call("retire", gone))
        all_end = {name for emu in self.bound for name in emu.endpoints} <= self.dead.union(gone)
        for endpoint in gone:
            serves = endpoint not in self.dead and any(endpoint in emu.endpoints for emu in self.bound)
            assert not serves or all_end, f"{endpoint} serves a unit and is retired"
            self._pending = [fact for fact in self._pending if getattr(fact, "endpoint", None) != endpoint]
            if endpoint in self.dead or all_end:
                self._drop(endpoint)
            if self.endpoints.pop(endpoint, None) is not None:
                self._births[int(endpoint[1:].partition(".")[0])] = int(endpoint.rpartition(".")[2]) + 1

    def quiesce(self, epoch: int, emus: Iterable[Emu], deadline_s: float) -> None:
        asked = tuple(emus)
        self.log.append(Call("quiesce", asked))
        for endpoint in _endpoints(asked):
            self._answer(endpoint, "quiesce", fact=Quiesced(endpoint=endpoint, epoch=epoch))

    def release(self, release: Release) -> None:
        assert self.released is None, "the loop is released twice from one boundary"
        self.released = release

    def stop(self, reason: str) -> None:
        self.stopped = reason

    # CheckpointPort

    def save(self, tag: str, emus: Iterable[Emu], endpoints: Iterable[EndpointId]) -> None:
        units = tuple(emus)
        self.log.append(Call("save", (tag, units)))
        found = self._written.setdefault(
            tag, {s: {ref: np.full_like(v, -1) for ref, v in held.items()} for s, held in self.values.items()}
        )
        parts = shares(self.config.states, units)
        for endpoint in endpoints:
            digests = []
            for unit, tensor, box in parts[endpoint]:
                if self.holds_values:
                    values = self.shards[unit.stage].shards[endpoint, unit][tensor.ref]
                    found[unit.stage][tensor.ref][at(box)] = values[at(box)]
                    digests.append((unit.stage, BoxDigest(tensor.ref, box, box_sums(values, box))))
                else:
                    digests.append((unit.stage, BoxDigest(tensor.ref, box, (box.volume, box.volume))))
            fact = StateWritten(endpoint=endpoint, tag=tag, file=endpoint, num_bytes=1, sha256="", digests=tuple(digests))
            self._answer(endpoint, "save", fact=fact)

    def seal(self, tag: str, step: int, written: Iterable[StateWritten], digests: StageDigests) -> None:
        self.log.append(Call("seal", (tag, step)))
        held = self._written[tag]
        assert all((values >= 0).all() for tensors in held.values() for values in tensors.values()), "a part is missing"
        folder = f"/checkpoints/{tag}-step-{step}"
        self.checkpoints.setdefault(folder, held)
        self._answer("job", "seal", fact=StateSealed(tag=tag, folder=folder))

    def restore(self, epoch: int, folder: str, emus: Iterable[Emu]) -> None:
        units, saved = tuple(emus), self.checkpoints[folder]
        self.log.append(Call("restore", (epoch, folder, units)))
        for emu in units:
            held = self.shards[emu.stage].shards
            for endpoint in emu.endpoints:
                held.setdefault((endpoint, emu.unit), {})
            if self.holds_values:
                for endpoint, tensor, mask in rank_masks(self.config.states[emu.stage], emu):
                    held[endpoint, emu.unit][tensor.ref] = np.where(mask, saved[emu.stage][tensor.ref], -1)
        for endpoint in _endpoints(units):
            self._answer(endpoint, "restore", fact=StateRead(endpoint=endpoint, epoch=epoch, num_bytes=1))

    # PlannerPort

    def propose(self, cycle: int, snapshot: Snapshot, top: int) -> None:
        self.log.append(Call("propose", (cycle, snapshot, top)))
        answer = PlanReady(cycle=cycle, proposals=propose(snapshot, top), current_l_step_s=snapshot.l_step_s(), seconds=0.0)
        self._planned = self.boundary + self._plan_boundaries, answer

    # EndpointPort

    def install(self, programs: Iterable[Program]) -> None:
        for program in programs:
            self.log.append(Call("install", program))
            endpoint = self.endpoints[program.endpoint]
            made = set(program.groups) - endpoint.groups
            endpoint.programs.append(program)
            endpoint.ops.update({op.id: op for op in program.ops})
            endpoint.groups |= made
            fact = Installed(
                endpoint=program.endpoint,
                epoch=program.epoch,
                setup_s=SETUP_S * ordinal(program.endpoint),
                groups_made=len(made),
                groups_reused=len(program.groups) - len(made),
            )
            self._answer(program.endpoint, "install", fact=fact)

    def run(self, op: Op) -> None:
        self.log.append(Call("run", op))
        if op.id not in self._done:
            self._running[op.id] = op, set(op.members)
        for endpoint in op.members:
            if self.endpoints[endpoint].ops.get(op.id) != op.seen_by(endpoint):
                self._pending.append(OpFailed(endpoint=endpoint, op=op.id, error="it is not installed"))
                continue
            num_bytes = sum(received_bytes(exchange, endpoint) for exchange in op.exchanges)
            fact = OpCompleted(endpoint=endpoint, op=op.id, bytes_received=num_bytes, seconds=0.0)
            self._answer(endpoint, *(op.primitives or ("Reshard",)), fact=fact)

    def digest(self, tag: str, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        self.log.append(Call("digest", (tag, units)))
        for endpoint in _endpoints(units):
            if endpoint in self.dead:
                continue  # its death is on its way
            taken = tuple((emu.unit, tuple(self._box_digests(emu, endpoint))) for emu in units if endpoint in emu.endpoints)
            self._answer(endpoint, "digest", fact=DigestsTaken(endpoint=endpoint, tag=tag, digests=taken))

    def bind(self, epoch: int, emus: tuple[Emu, ...], endpoints: Iterable[EndpointId], keep: frozenset[GroupKey]) -> None:
        named = tuple(endpoints)
        self.log.append(Call("bind", (epoch, emus, named, keep)))
        self.bound = emus
        kept = {emu.unit for emu in emus}
        for stage in self.shards.values():
            for endpoint, unit in list(stage.shards):
                if endpoint in named and unit not in kept:
                    del stage.shards[endpoint, unit]
        for endpoint in named:
            self.endpoints[endpoint].groups &= keep
            fact = Committed(endpoint=endpoint, epoch=epoch, peak_bytes=PEAK_BYTES * ordinal(endpoint))
            self._answer(endpoint, "bind", fact=fact)

    def abort(self, epoch: int, members: Iterable[EndpointId]) -> None:
        """What was under way ends at once: done, or failed where it waits for others, as chance has it."""
        named = tuple(members)
        self.log.append(Call("abort", (epoch, named)))
        for index, fact in enumerate(self._pending):
            if not isinstance(fact, OpCompleted) or fact.endpoint not in named or fact.op not in self._running:
                continue
            waits = bool(self._running[fact.op][0].exchanges)
            if waits and (self._order is None or self._order.random() < 0.5):
                self._pending[index] = OpFailed(endpoint=fact.endpoint, op=fact.op, error="it was aborted")
            else:
                self._land(fact)
        self._running.clear()
        for endpoint in named:
            done = tuple(sorted(op for who, op in self._done_by if who == endpoint and op.startswith(f"e{epoch}.")))
            self._answer(endpoint, "settle", fact=Settled(endpoint=endpoint, epoch=epoch, done=done))

    def _answer(self, endpoint: EndpointId, *doing: str, fact: Event) -> None:
        """Put down the fact, or what the fault script says instead."""
        fault, where = self.faults.take(endpoint, *doing)
        if endpoint in self.dead:
            return
        if fault == "lose":
            self.dead.add(endpoint)
            fact = EndpointDied(endpoint=endpoint, during=where)
        if fault == "fail":
            fact = OpFailed(endpoint=endpoint, op=_called(fact, where), error="the disk is on fire")
        self._pending.append(fact)

    def _carry_out(self, op: Op) -> None:
        del self._running[op.id]
        self._done.add(op.id)
        shards = self.shards[op.stage]
        if self.holds_values:
            shards.run(op)
        else:
            shards.shards.update({(endpoint, emu.unit): {} for emu in op.makes for endpoint in emu.endpoints})
        for site in op.frees:
            assert not shards.shards.pop(site, None), "all of a site is released with the operation that frees it"
        ref = self.faults.take_corruption(op)
        if ref is None:
            return
        for key, tensors in shards.shards.items():
            values = tensors.get(ref)
            if key[1] == op.makes[0].unit and values is not None and (values >= 0).any():
                values[np.unravel_index(int(np.argmax(values)), values.shape)] += 1
                self.faults.fired.append(("corrupt", key[0], op.id))
                return

    def _box_digests(self, emu: Emu, endpoint: EndpointId) -> Iterator[BoxDigest]:
        state = self.config.states[emu.stage]
        tensors = self.shards[emu.stage].shards[endpoint, emu.unit]
        for tensor, boxes in state.shards(emu.layout, emu.rank_of(endpoint)).items():
            for box in boxes:
                sums = box_sums(tensors[tensor.ref], box) if self.holds_values else (box.volume, box.volume)
                yield BoxDigest(tensor.ref, box, sums)


def _called(fact: Event, where: str) -> str:
    """The call that a fact completes, as OpFailed names it; `where` for those that it names otherwise."""
    match fact:
        case OpCompleted():
            return fact.op
        case Quiesced():
            return f"quiesce e{fact.epoch}"
        case Installed():
            return f"install e{fact.epoch}"
        case Committed():
            return f"bind e{fact.epoch}"
        case DigestsTaken():
            return f"digest {fact.tag}"
        case StateWritten():
            return f"save {fact.tag}"
        case StateSealed():
            return f"seal {fact.tag}"
        case StateRead():
            return f"restore e{fact.epoch}"
    return where


def received_bytes(exchange: Exchange, endpoint: EndpointId) -> int:
    """Bytes that an endpoint gets from others, element by element."""
    if endpoint not in exchange.group.members:
        return 0
    if isinstance(exchange, AllGather):
        others = [parts for m, parts in zip(exchange.group.members, exchange.parts, strict=True) if m != endpoint]
        return sum(_volume(part.box) * t.item_bytes for parts in others for part in parts for t in part.tensors)
    return sum(_volume(m.box) * t.item_bytes for m in exchange.moves if m.target.endpoint == endpoint for t in m.tensors)


def box_sums(whole: Values, box: Box) -> Sums:
    """An additive hash of (element index, value) of a box: multiplicative, and no relative of the one of the transport."""
    values = whole[at(box)].reshape(-1).astype(np.uint64)
    index = np.arange(whole.size, dtype=np.uint64).reshape(whole.shape)[at(box)].reshape(-1)
    sums = []
    for factor in (np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)):
        mixed = (index + np.uint64(1)) * factor + values * np.uint64(0x27D4EB2F165667C5)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * factor
        sums.append(int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64)))
    return sums[0], sums[1]


def _received(op: Op, endpoint: EndpointId) -> Iterator:  # type: ignore[type-arg]
    for exchange in op.exchanges:
        assert not isinstance(exchange, AllGather), "a weight sync travels in pairs"
        yield from (move for move in exchange.moves if move.target.endpoint == endpoint)


def ordinal(endpoint: EndpointId) -> int:
    """The number of the device plus one: "d3.0" -> 4."""
    return int(endpoint[1:].partition(".")[0]) + 1


def _volume(box: Box) -> int:
    return int(np.prod([high - low for low, high in zip(box.low, box.high, strict=True)], dtype=np.int64))


def _endpoints(emus: Iterable[Emu]) -> list[EndpointId]:
    return sorted({endpoint for emu in emus for endpoint in emu.endpoints})
