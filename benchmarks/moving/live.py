"""Nereus: everything in these benchmarks that knows its API.

    before the clock: arrange -> transition DAG -> one program per endpoint      (`plan_pair`, in the benchmark's process)
    on the clock:     install, on fresh communicators -> the operations in order (`Live.move`, in each rank's process)

Endpoints run their operations in the one global order without a controller between them: what one waits for from another
arrives as a message. Destroys that only follow the proof are left to the clean-up, as in a job.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from benchmarks.moving.contest import Job, Outcome
from benchmarks.moving.shapes import NUM_RANKS, Seat, Shape
from benchmarks.moving.state import State, StateTensor, cut, whole
from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu, counter_tensors, phi
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.dense import state_spec
from nereus.layout.layout import Layout
from nereus.layout.tensors import CanonicalTensor, Kind
from nereus.spec.model import ModelShape
from nereus.transition.arrange import arrange
from nereus.transition.collectives import AllGather
from nereus.transition.dag import transition_dag
from nereus.transition.ops import Op, Program, Transition, program_for
from nereus.transition.residency import most_resident
from nereus.transport.communicators import Communicators
from nereus.transport.executor import Executor
from nereus.transport.memory import DeviceMemory
from nereus.transport.store import UnitStore

STAGE = "actor_training"
CAPACITY_BYTES = 16 << 30
"""Ledger capacity of a rank; never the limit, since these benchmarks ask how long and how much, not whether it fits."""

NODE_SIZE = 8
"""Devices of a node where planning is measured on paper."""

MEASURED = ModelShape(
    hidden_size=512, num_layers=5, num_heads=8, num_kv_heads=2, head_dim=64, ffn_size=1150, vocab_size=4999
)
"""206 MB with Adam moments; vocabulary, heads, kv heads, FFN and layers each divide unevenly by some degree."""

LLAMA_3_1_8B = ModelShape(
    hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=14_336, vocab_size=128_256
)
"""From its published `config.json`."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one endpoint has to know to take part in a transition."""

    endpoint: EndpointId
    program: Program
    ops: tuple[str, ...]
    state: StateSpec
    old: Emu | None
    new: Emu | None


@dataclass(frozen=True, slots=True)
class PlannedPair:
    """A transition between two shapes, and the facts about it that others need."""

    works: tuple[Work, ...]
    old: tuple[Seat | None, ...]
    new: tuple[Seat | None, ...]
    """The seat of each rank before and after: the assignment that the plan chose."""
    links: Mapping[tuple[int, int], int]
    """Bytes that cross, by (source rank, target rank)."""
    plan_ms: float

    @property
    def bytes_moved(self) -> int:
        return sum(self.links.values())


@cache
def _spec(model: ModelShape) -> StateSpec:
    return state_spec(model, "float32", counter_tensors(), optimizer=True)


def measured_state() -> State:
    """The state that all contestants move, in plain data."""
    spec = _spec(MEASURED)
    return State(tuple(_plain(tensor) for tensor in spec.tensors), spec.num_layers)


def _plain(tensor: CanonicalTensor) -> StateTensor:
    segments = tuple((segment.length, segment.grain) for segment in tensor.segments)
    return StateTensor(str(tensor.ref), tensor.shape, tensor.dtype, tensor.place.value, tensor.layer, tensor.axis, segments)


def plan_pair(source: Shape, target: Shape, epoch: int) -> PlannedPair:
    """Plan the transition of the measured state, with the time that it took."""
    spec = _spec(MEASURED)
    current = _units(source, epoch)
    start = time.perf_counter()
    transition = _planned(spec, current, target, epoch + 1)
    plan_ms = 1e3 * (time.perf_counter() - start)
    works = tuple(_work(_endpoint(rank), spec, current, transition, epoch + 1) for rank in range(NUM_RANKS))
    links: dict[tuple[int, int], int] = defaultdict(int)
    for op in transition.ops:
        for sender, receiver, num_bytes in _messages(op):
            links[_rank(sender), _rank(receiver)] += num_bytes
    return PlannedPair(works, _seats(works, "old"), _seats(works, "new"), dict(links), plan_ms)


def plan_on_paper(source: Shape, target: Shape) -> float:
    """Milliseconds to plan a transition of Llama-3.1-8B with Adam: rank assignment and the DAG with all its moves."""
    spec, current = _spec(LLAMA_3_1_8B), _units(source, 0)
    start = time.perf_counter()
    _planned(spec, current, target, 1)
    return 1e3 * (time.perf_counter() - start)


class Live:
    """One rank of Nereus: a shard store, communicators and an executor."""

    def __init__(self, rank: int, store: Store) -> None:
        self._memory = DeviceMemory(_endpoint(rank), CAPACITY_BYTES)
        self._store = UnitStore(torch.device("cpu"), self._memory)
        self._communicators = Communicators(store, _endpoint(rank), torch.device("cpu"), timeout_s=60.0)
        self._executor = Executor(self._store, self._communicators, self._memory, _endpoint(rank))

    def prepare(self, job: Job) -> None:
        """Fill the old unit; no communicator is left from before."""
        self._work = job.work
        old = self._work.old
        if old is not None:
            shards = self._work.state.shards(old.layout, old.rank_of(self._work.endpoint))
            self._store.open(old.unit, shards)
            for tensor, boxes in shards.items():
                for box in boxes:
                    values = whole(_plain(tensor))[box.slices((0,) * len(tensor.shape))]
                    self._store.write(old.unit, tensor.ref, box).copy_(values)
                    self._store.land(old.unit, tensor.ref, box)
        self._old_bytes = self._memory.used_bytes
        self._memory.reset_peak()

    def move(self) -> None:
        """From a known program to all boxes landed."""
        self._executor.install(self._work.program)
        for op in self._work.ops:
            self._executor.run(op)

    def check(self) -> Outcome:
        """Digest the new unit, on a clock of its own, and compare each of its tensors with the oracle."""
        peak_bytes, new = self._memory.peak_bytes, self._work.new
        start = time.perf_counter()
        self._executor.digest([new.unit] if new is not None else [])
        digest_s = time.perf_counter() - start
        self._executor.bind({new.unit} if new is not None else set(), set())
        extra = peak_bytes - max(self._old_bytes, self._memory.used_bytes)
        return Outcome(self._wrong(new), digest_s=digest_s, peak_extra_bytes=extra)

    def clear(self) -> None:
        """Drop all units and all communicators."""
        self._executor.bind(set(), set())

    def _wrong(self, new: Emu | None) -> tuple[str, ...]:
        if new is None:
            return ()
        rank = new.rank_of(self._work.endpoint)
        seat = _seat(new, self._work.endpoint)
        held = {kind: self._store.tensors(new.unit, kind) for kind in Kind}
        shards = self._work.state.shards(new.layout, rank)
        return tuple(str(t.ref) for t in shards if not torch.equal(held[t.kind][t.name], cut(_plain(t), seat)))


def _planned(spec: StateSpec, current: tuple[Emu, ...], target: Shape, epoch: int) -> Transition:
    count = max(target.size, sum(emu.layout.size for emu in current))
    endpoint_of = {device: _endpoint(device) for device in range(count)}
    device_of = {endpoint: device for device, endpoint in endpoint_of.items()}
    node_of = {device: device // NODE_SIZE for device in range(count)}
    wanted = StagePlan(STAGE, Layout(target.tp, target.pp), target.dp, tuple(range(target.size)))
    plan = most_resident(arrange(current, wanted, device_of, node_of), current, spec, device_of, node_of)
    nodes = {endpoint: node_of[device] for endpoint, device in device_of.items()}
    return transition_dag({STAGE: current}, {STAGE: plan}, {STAGE: spec}, endpoint_of, epoch, nodes)


def _units(shape: Shape, epoch: int) -> tuple[Emu, ...]:
    plan = StagePlan(STAGE, Layout(shape.tp, shape.pp), shape.dp, tuple(range(shape.size)))
    return phi(plan, {rank: _endpoint(rank) for rank in range(shape.size)}, epoch)


def _work(endpoint: EndpointId, spec: StateSpec, current: tuple[Emu, ...], transition: Transition, epoch: int) -> Work:
    program = program_for(endpoint, epoch, transition.ops, (), {STAGE: spec})
    ops = tuple(op.id for op in transition.moving if endpoint in op.members)
    return Work(endpoint, program, ops, spec, _unit_at(endpoint, current), _unit_at(endpoint, transition.result))


def _messages(op: Op) -> Iterable[tuple[EndpointId, EndpointId, int]]:
    """(sender, receiver, bytes) of all that crosses in an operation."""
    for exchange in op.exchanges:
        if isinstance(exchange, AllGather):
            for sender, parts in zip(exchange.group.members, exchange.parts, strict=True):
                size = sum(part.num_bytes for part in parts)
                yield from ((sender, receiver, size) for receiver in exchange.group.members if receiver != sender)
        else:
            yield from ((move.source.endpoint, move.target.endpoint, move.num_bytes) for move in exchange.moves)


def _unit_at(endpoint: EndpointId, emus: Iterable[Emu]) -> Emu | None:
    return next((emu for emu in emus if endpoint in emu.endpoints), None)


def _seats(works: Iterable[Work], when: str) -> tuple[Seat | None, ...]:
    units = ((getattr(work, when), work.endpoint) for work in works)
    return tuple(_seat(emu, endpoint) if emu is not None else None for emu, endpoint in units)


def _seat(emu: Emu, endpoint: EndpointId) -> Seat:
    at = emu.layout.coordinate(emu.rank_of(endpoint))
    return Seat(emu.layout.tp, emu.layout.pp, at.tp, at.pp)


def _endpoint(rank: int) -> EndpointId:
    return f"d{rank}.0"


def _rank(endpoint: EndpointId) -> int:
    return int(endpoint[1:].split(".")[0])
