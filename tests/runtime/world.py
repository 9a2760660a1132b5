"""A job and its endpoints in one process, on numpy shards: EndpointPort, JobPort and FactSource for the runtime's tests.

    verb -> log, and one pending fact per endpoint -> next_fact delivers them in any order -> the last one of an op moves

An operation takes effect only when its last member's completion is delivered, so whoever starts a successor too early reads
what has not landed, and the interpreter refuses that. Faults are a script, counted, so that a test proves that they fired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np

from nereus.emu.digest import BoxDigest, Sums
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.errors import StaleUnitError
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.dense import layer_name
from nereus.layout.tensors import Kind, TensorRef
from nereus.runtime.facts import (
    Committed,
    DeviceReady,
    DigestsTaken,
    EndpointDied,
    Fact,
    Installed,
    OpCompleted,
    OpFailed,
    Seeded,
)
from nereus.runtime.ports import JobDescription
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.transition.ops import COMPUTE, AllGather, Exchange, GroupKey, Op, Program
from tests.builders import Values, make_model, make_state
from tests.transition.interpreter import Interpreter, at, cut_afresh

SETUP_S = 0.25
"""What an endpoint says that making its communicators took, times the number of its device plus one."""

PEAK_BYTES = 1000
"""What an endpoint says that the peak of its memory was, times the number of its device plus one."""


class Faults:
    """What goes wrong, once each: at a verb (`install`, `digest`, `bind`, `seed`, `spawn`) or at a primitive (`Split`)."""

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

    def silence(self, endpoint: EndpointId, at: str) -> Faults:
        """The answer never comes."""
        self._planned[endpoint, at] = "silence"
        return self

    def corrupt(self, primitive: str, ref: TensorRef) -> Faults:
        """One element of the first unit that such a primitive makes is wrong, on one endpoint that holds some of it."""
        self._corrupted[primitive] = ref
        return self

    def take(self, endpoint: EndpointId, at: str) -> str:
        """What happens to this endpoint here; nothing happens twice."""
        kind = self._planned.pop((endpoint, at), "")
        if kind:
            self.fired.append((kind, endpoint, at))
        return kind

    def take_corruption(self, primitive: str) -> TensorRef | None:
        return self._corrupted.pop(primitive, None)


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
    """All ports of one job. `shards[stage]` are the units as they stand; `log` is every call and every delivered fact."""

    def __init__(self, *, faults: Faults | None = None, order: Random | None = None, states: Mapping[str, StateSpec] = {}):
        self.states = dict(states) or {
            ACTOR_GENERATION: small_state(),
            REFERENCE_INFERENCE: small_state(),
            ACTOR_TRAINING: small_state(optimizer=True),
        }
        self.faults = faults or Faults()
        self.shards = {stage: Interpreter(state, ()) for stage, state in self.states.items()}
        self.endpoints: dict[EndpointId, _Endpoint] = {}
        self.bound: tuple[Emu, ...] = ()
        self.log: list[Call | Fact] = []
        self.dead: set[EndpointId] = set()
        self._order = order
        self._pending: list[Fact] = []
        self._running: dict[str, tuple[Op, set[EndpointId]]] = {}
        self._births: dict[DeviceId, int] = {}

    # What tests ask

    def calls(self, verb: str) -> list[object]:
        """What a verb was called about, in order."""
        return [entry.about for entry in self.log if isinstance(entry, Call) and entry.verb == verb]

    def hold(self, emus: Iterable[Emu]) -> None:
        """Place complete units, and the endpoints that they need."""
        for emu in emus:
            self.shards[emu.stage].shards.update(cut_afresh(self.states[emu.stage], [emu]))
            self.endpoints.update({e: _Endpoint() for e in emu.endpoints if e not in self.endpoints})

    def units(self) -> set[tuple[EndpointId, UnitId]]:
        """Which endpoint holds a part of which unit."""
        return {key for stage in self.shards.values() for key in stage.shards}

    def wrong(self, emus: Iterable[Emu]) -> list[str]:
        """The shards of these units that are not those of the global values, cut afresh."""
        found = []
        for emu in emus:
            for key, tensors in cut_afresh(self.states[emu.stage], [emu]).items():
                held = self.shards[emu.stage].shards.get(key)
                found += [f"{key} {ref}" for ref, v in tensors.items() if held is None or not np.array_equal(held[ref], v)]
        return found

    def sync(self, op_id: str) -> None:
        """Carry out an installed weight sync, as the loop does: every endpoint that installed it does its part."""
        for endpoint in self.endpoints.values():
            op = endpoint.ops.get(op_id)
            for move in () if op is None else (*op.copies, *_received(op, self._name(endpoint))):
                source = self.shards[ACTOR_TRAINING].shards[move.source.endpoint, move.source.unit][move.tensor.ref]
                target = self.shards[ACTOR_GENERATION].shards[move.target.endpoint, move.target.unit][move.tensor.ref]
                target[at(move.box)] = source[at(move.box)]

    def train(self) -> None:
        """An update: every parameter of every bound training unit grows by one."""
        for (endpoint, unit), tensors in self.shards[ACTOR_TRAINING].shards.items():
            assert any(unit == emu.unit and endpoint in emu.endpoints for emu in self.bound)
            for ref, values in tensors.items():
                if ref.kind is Kind.PARAMETER:
                    values[values >= 0] += 1

    # JobPort

    def describe(self) -> JobDescription:
        return JobDescription(self.states, trains=ACTOR_TRAINING, generates=ACTOR_GENERATION, global_batch=8)

    def compute_groups(self, emus: Iterable[Emu]) -> frozenset[GroupKey]:
        """One communicator for each unit."""
        return frozenset(GroupKey.of(emu.endpoints, COMPUTE) for emu in emus if emu.layout.size > 1)

    def seed(self, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        self.log.append(Call("seed", units))
        self.hold(units)
        for endpoint in _endpoints(units):
            self._answer(endpoint, "seed", Seeded(endpoint=endpoint))

    def spawn(self, devices: Iterable[DeviceId]) -> None:
        started = tuple(devices)
        self.log.append(Call("spawn", started))
        for device in started:
            birth = self._births[device] = self._births.get(device, -1) + 1
            endpoint = f"d{device}.{birth}"
            self.endpoints[endpoint] = _Endpoint()
            self._answer(endpoint, "spawn", DeviceReady(device=device, endpoint=endpoint))

    def retire(self, endpoints: Iterable[EndpointId]) -> None:
        gone = tuple(endpoints)
        self.log.append(Call("retire", gone))
        for endpoint in gone:
            assert not any(endpoint in emu.endpoints for emu in self.bound), f"{endpoint} serves a unit and is retired"
            del self.endpoints[endpoint]

    # EndpointPort

    def install(self, program: Program) -> None:
        self.log.append(Call("install", program))
        endpoint = self.endpoints[program.endpoint]
        made = set(program.groups) - endpoint.groups
        endpoint.programs.append(program)
        endpoint.ops.update({op.id: op for op in program.ops})
        endpoint.groups |= made
        fact = Installed(
            endpoint=program.endpoint,
            epoch=program.epoch,
            setup_s=SETUP_S * _ordinal(program.endpoint),
            groups_made=len(made),
            groups_reused=len(program.groups) - len(made),
        )
        self._answer(program.endpoint, "install", fact)

    def run(self, op: Op) -> None:
        self.log.append(Call("run", op))
        self._running[op.id] = op, set(op.members)
        for endpoint in op.members:
            if self.endpoints[endpoint].ops.get(op.id) != op.seen_by(endpoint):
                error = StaleUnitError(f"endpoint {endpoint}: operation {op.id} is not installed")
                self._pending.append(OpFailed(endpoint=endpoint, op=op.id, error=error))
                continue
            num_bytes = sum(received_bytes(exchange, endpoint) for exchange in op.exchanges)
            fact = OpCompleted(endpoint=endpoint, op=op.id, bytes_received=num_bytes, seconds=0.0)
            self._answer(endpoint, op.primitive, fact)

    def digest(self, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        self.log.append(Call("digest", units))
        for endpoint in _endpoints(units):
            taken = {emu.unit: tuple(self._box_digests(emu, endpoint)) for emu in units if endpoint in emu.endpoints}
            self._answer(endpoint, "digest", DigestsTaken(endpoint=endpoint, digests=taken, seconds=0.0))

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
            fact = Committed(endpoint=endpoint, epoch=epoch, peak_bytes=PEAK_BYTES * _ordinal(endpoint))
            self._answer(endpoint, "bind", fact)

    def abort(self, members: Iterable[EndpointId]) -> None:
        self.log.append(Call("abort", tuple(members)))

    def next_fact(self, timeout_s: float) -> Fact | None:
        if not self._pending:
            return None
        fact = self._pending.pop(self._order.randrange(len(self._pending)) if self._order else 0)
        if isinstance(fact, OpCompleted):
            op, waiting = self._running[fact.op]
            waiting.discard(fact.endpoint)
            if not waiting:
                self._carry_out(op)
        self.log.append(fact)
        return fact

    def _answer(self, endpoint: EndpointId, doing: str, fact: Fact) -> None:
        """Put down the fact, or what the fault script says instead."""
        fault = self.faults.take(endpoint, doing)
        if endpoint in self.dead or fault == "silence":
            return
        if fault == "lose":
            self.dead.add(endpoint)
            fact = EndpointDied(endpoint=endpoint, during=doing)
        if fault == "fail":
            name = fact.op if isinstance(fact, OpCompleted) else doing
            fact = OpFailed(endpoint=endpoint, op=name, error=RuntimeError("the disk is on fire"))
        self._pending.append(fact)

    def _carry_out(self, op: Op) -> None:
        shards = self.shards[op.stage]
        shards.run(op)
        ref = self.faults.take_corruption(op.primitive)
        if ref is None:
            return
        for key, tensors in shards.shards.items():
            values = tensors.get(ref)
            if key[1] == op.makes[0].unit and values is not None and (values >= 0).any():
                values[np.unravel_index(int(np.argmax(values)), values.shape)] += 1
                self.faults.fired.append(("corrupt", key[0], op.id))
                return

    def _box_digests(self, emu: Emu, endpoint: EndpointId) -> Iterator[BoxDigest]:
        state = self.states[emu.stage]
        tensors = self.shards[emu.stage].shards[endpoint, emu.unit]
        for tensor, boxes in state.shards(emu.layout, emu.rank_of(endpoint)).items():
            for box in boxes:
                yield BoxDigest(tensor.ref, box, box_sums(tensors[tensor.ref], box))

    def _name(self, wanted: _Endpoint) -> EndpointId:
        return next(name for name, endpoint in self.endpoints.items() if endpoint is wanted)


def small_state(*, optimizer: bool = False) -> StateSpec:
    """A tied model of three layers with one or two tensors in each, every sharding rule among them, and the counters."""
    state = make_state(make_model(num_layers=3, vocab=11, tied=True), optimizer=optimizer)
    parts = ("input_layernorm", "self_attn.k_proj"), ("mlp.up_proj",), ("self_attn.o_proj", "self_attn.q_proj")
    kept = {layer_name(layer, part) for layer, names in enumerate(parts) for part in names}
    return StateSpec(tuple(t for t in state.tensors if t.layer is None or t.name in kept), state.num_layers)


def received_bytes(exchange: Exchange, endpoint: EndpointId) -> int:
    """Bytes that an endpoint gets from others, element by element."""
    if endpoint not in exchange.group.members:
        return 0
    if isinstance(exchange, AllGather):
        others = [parts for m, parts in zip(exchange.group.members, exchange.parts, strict=True) if m != endpoint]
        return sum(_volume(part.box) * part.tensor.item_bytes for parts in others for part in parts)
    return sum(_volume(m.box) * m.tensor.item_bytes for m in exchange.moves if m.target.endpoint == endpoint)


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


def _ordinal(endpoint: EndpointId) -> int:
    """The number of the device plus one: "d3.0" -> 4."""
    return int(endpoint[1:].partition(".")[0]) + 1


def _volume(box: Box) -> int:
    return int(np.prod([high - low for low, high in zip(box.low, box.high, strict=True)], dtype=np.int64))


def _endpoints(emus: Iterable[Emu]) -> list[EndpointId]:
    return sorted({endpoint for emu in emus for endpoint in emu.endpoints})
