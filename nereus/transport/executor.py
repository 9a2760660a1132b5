"""Carries out installed operations on the shards of one endpoint: exchanges, and local copies while they are under way.

    install(program): groups made, bytes checked, nothing moved
    run(op):  open the units it makes -> exchange, copy what is resident -> release what it frees
              a stream: the same bucket by bucket, each released when all members have it
    bind(units): everything else is released

Both ends of a message walk the same moves in the same order, so that contents line up without a header. It runs in any
process on the thread of the transfer lane, over Gloo or NCCL alike; on a GPU its kernels have a stream of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch

from nereus.emu.digest import BoxDigest
from nereus.emu.unit import Emu
from nereus.errors import OutOfDeviceMemory, StaleUnitError, StoreError
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.moves import Move
from nereus.layout.tensors import TensorRef
from nereus.transition.collectives import TRANSFER, GroupKey
from nereus.transition.messages import buffers as buffers_of
from nereus.transition.ops import Op, Program, Stream
from nereus.transport.communicators import Communicators
from nereus.transport.digest import unit_digests
from nereus.transport.exchange import Exchanges
from nereus.transport.memory import DeviceMemory
from nereus.transport.ports import Shards, ShardStore
from nereus.transport.staging import Staging
from nereus.transport.store import shards_bytes
from nereus.transport.streams import Streams


class Installation(NamedTuple):
    """What installing a program took."""

    groups_made: int
    groups_reused: int
    seconds: float


class Completion(NamedTuple):
    """What one endpoint's part of an operation took."""

    bytes_received: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Installed:
    op: Op
    state: StateSpec | None
    """The logical state of the op's model-stage, if it makes units."""
    buffer_bytes: tuple[int, ...]
    """What its buffers take here: in each bucket of a stream, else at once."""


class Executor:
    """The operations of one endpoint. One thread calls it; an abort reaches it through its communicators."""

    def __init__(
        self,
        store: ShardStore,
        communicators: Communicators,
        memory: DeviceMemory,
        endpoint: EndpointId,
        streams: Streams | None = None,
    ) -> None:
        """`streams` are those of the endpoint's lanes; none on a CPU."""
        self.endpoint = endpoint
        self._streams = streams or Streams(communicators.device)
        self._store = store
        self._communicators = communicators
        self._memory = memory
        self._epoch = -1
        self._ops: dict[str, _Installed] = {}

    def install(self, program: Program) -> Installation:
        """Make the program's communicators and keep its operations.

        A newer epoch replaces the operations that make or end units; repeatable ones (weight syncs) stay until `bind`.
        Raises OutOfDeviceMemory with the operation that would not fit, StaleUnitError for an older epoch,
        TransitionFailed when a group cannot be made; nothing is installed then.
        """
        start = time.perf_counter()
        if program.epoch < self._epoch:
            raise StaleUnitError(f"endpoint {self.endpoint}: program of epoch {program.epoch}, {self._epoch} is installed")
        buffers = {op.id: tuple(held.get(self.endpoint, 0) for held in buffers_of(op)) for op in program.ops}
        self._check_memory(program, buffers)
        made, reused = self._communicators.ensure(program.groups, f"e{program.epoch}")
        for key in program.groups:
            if key.lane == TRANSFER:
                self._communicators.get(key).timeout_s = program.timeout_s
        if program.epoch > self._epoch:
            self._ops = {name: known for name, known in self._ops.items() if known.op.is_repeatable}
        self._epoch = program.epoch
        for op in program.ops:
            self._ops[op.id] = _Installed(op, program.states.get(op.stage), buffers[op.id])
        return Installation(made, reused, time.perf_counter() - start)

    @torch.no_grad()
    def run(self, op_id: str) -> Completion:
        """Carry out this endpoint's part of an installed operation; returns when all of it has landed.

        A Destroy releases its unit; other operations leave their inputs until `bind`, but for streams. On a failure the
        units that it opened are released again and the error is raised as it came. A stream keeps what has landed: run
        again on all members, it goes on. A weight sync that failed leaves its target units partly written, and must be run
        again before they are used. Raises StaleUnitError for an unknown operation.
        """
        start = time.perf_counter()
        installed = self._ops.get(op_id)
        if installed is None:
            raise StaleUnitError(f"endpoint {self.endpoint}: operation {op_id} is not installed, or has run already")
        op = installed.op
        with self._streams.lane(TRANSFER):
            received = self._stream(installed, op.stream) if op.stream else self._at_once(installed)
        self._streams.wait(TRANSFER)
        if not op.is_repeatable and op.stream is None:
            # A stream stays: where another member has yet to end it, all take part once more.
            del self._ops[op_id]
        return Completion(received, time.perf_counter() - start)

    @property
    def installed(self) -> frozenset[str]:
        """The operations that can be run now: those that have run are gone; weight syncs stay, and streams until `bind`."""
        return frozenset(self._ops)

    def settle(self) -> None:
        """Drop what an interrupted stream was receiving, so that a program which ends it is not refused for its bytes."""
        for known in self._ops.values():
            if known.op.stream is None:
                continue
            for emu in known.op.makes:
                held = self._store.catalog().get(emu.unit, {})
                shards = self._shards(emu, known.state)
                self._release(
                    emu.unit, frozenset(t.ref for t, boxes in shards.items() if set(held.get(t, ())) != set(boxes))
                )

    def digest(self, units: Iterable[UnitId]) -> dict[UnitId, tuple[BoxDigest, ...]]:
        """The digests of every box that is held here of these units. Raises StaleUnitError for a unit that is not open."""
        units, held = list(units), self._store.catalog()
        for unit in units:
            if unit not in held:
                raise StaleUnitError(f"endpoint {self.endpoint}: unit {unit} is not open here and has no digest")
        with self._streams.lane(TRANSFER):
            return {unit: unit_digests(self._store, unit) for unit in units}

    def bind(self, keep_units: Set[UnitId], keep_groups: Set[GroupKey]) -> None:
        """Release all other units, drop all other groups, and forget operations on units that are gone. Idempotent."""
        for unit in list(self._store.catalog()):
            if unit not in keep_units:
                self._store.release(unit)
        self._communicators.drop(keep_groups)
        held = set(self._store.catalog())
        self._ops = {name: known for name, known in self._ops.items() if self._units_of(known.op) <= held}

    def _at_once(self, installed: _Installed) -> int:
        """All of an operation: its units are opened, filled, and then what it frees is released. Returns bytes received."""
        op, opened = installed.op, list[UnitId]()
        with self._memory.holding(op.id, installed.buffer_bytes[0], "buffers"):
            try:
                for emu in op.makes:
                    self._open(op, emu.unit, self._shards(emu, installed.state))
                    opened.append(emu.unit)
                received = self._move(op)
            except BaseException:
                for unit in opened:
                    self._store.release(unit)
                raise
        for site in op.frees:
            self._store.release(site.unit)
        return received

    def _stream(self, installed: _Installed, stream: Stream) -> int:
        """Bucket by bucket, from the first that some member has not. Returns bytes received."""
        op, group = installed.op, self._communicators.get(stream.group)
        wanted = {emu.unit: self._shards(emu, installed.state) for emu in op.makes}
        mine = next((i for i, b in enumerate(stream.buckets) if not self._has_landed(wanted, b)), len(stream.buckets))
        first = len(stream.buckets) - group.largest(len(stream.buckets) - mine)
        received = 0
        for number, bucket in enumerate(stream.buckets):
            refs = frozenset(bucket)
            if number >= first:
                part = op.of_tensors(refs)
                for unit, shards in wanted.items():
                    # What an earlier try has left of it is dropped: as long as some member lacks it, no source is gone.
                    self._release(unit, refs)
                    self._open(part, unit, {tensor: boxes for tensor, boxes in shards.items() if tensor.ref in refs})
                with self._memory.holding(op.id, installed.buffer_bytes[number], "buffers"):
                    received += self._move(part)
                group.barrier()
            for site in op.frees:
                self._release(site.unit, refs)
        return received

    def _open(self, op: Op, unit: UnitId, shards: Shards) -> None:
        """Open a unit, or some tensors of it: what changes hands is there, the rest is empty."""
        taken = {t.ref: move.source.unit for move in op.handovers if move.target.unit == unit for t in move.tensors}
        self._store.open(unit, shards, taken)

    def _release(self, unit: UnitId, refs: frozenset[TensorRef]) -> None:
        """Drop some tensors of a unit, if it is here."""
        if unit in self._store.catalog():
            self._store.release(unit, refs)

    def _has_landed(self, wanted: dict[UnitId, Shards], bucket: tuple[TensorRef, ...]) -> bool:
        """Whether every box of a bucket is here."""
        held, refs = self._store.catalog(), frozenset(bucket)
        return all(
            set(held.get(unit, {}).get(tensor, ())) == set(boxes)
            for unit, shards in wanted.items()
            for tensor, boxes in shards.items()
            if tensor.ref in refs
        )

    def _move(self, op: Op) -> int:
        """Exchanges, and local copies while they are under way; returns the bytes received."""
        exchanges, staging = Exchanges.of(op, self.endpoint), Staging(self._communicators.device, op.bucket_bytes)
        exchanges.run(self._store, self._communicators, staging, lambda: self._copy(op.copies))
        return exchanges.received_bytes

    def _copy(self, copies: Iterable[Move]) -> None:
        for move in copies:
            for tensor in move.tensors:
                source = self._store.read(move.source.unit, tensor.ref, move.box)
                self._store.write(move.target.unit, tensor.ref, move.box).copy_(source)
                self._store.land(move.target.unit, tensor.ref, move.box)

    def _check_memory(self, program: Program, buffers: Mapping[str, tuple[int, ...]]) -> None:
        """Walk through the program's operations in order, as if nothing else changed meanwhile.

        Weight syncs are left out: they run after the commit, when the inputs that are held until then are gone.
        """
        used, held = self._memory.used_bytes, dict(self._store.catalog())
        for op in (op for op in program.ops if not op.is_repeatable):
            # What an interrupted stream has received already is there, and is not opened again.
            made = {
                emu.unit: {
                    tensor: boxes
                    for tensor, boxes in self._shards(emu, program.states.get(op.stage)).items()
                    if tensor not in held.get(emu.unit, {})
                }
                for emu in op.makes
            }
            held.update({unit: {**held.get(unit, {}), **shards} for unit, shards in made.items()})
            allocated = dict(made)
            for move in op.handovers:
                handed = {tensor.ref for tensor in move.tensors}
                for shards, unit in ((allocated, move.target.unit), (held, move.source.unit)):
                    left = shards.get(unit, {})
                    shards[unit] = {tensor: boxes for tensor, boxes in left.items() if tensor.ref not in handed}
            everything = frozenset(tensor.ref for shards in held.values() for tensor in shards)
            buckets = [frozenset(bucket) for bucket in op.stream.buckets] if op.stream else [everything]
            for refs, buffer in zip(buckets, buffers[op.id], strict=True):
                opens = sum(_bytes_of(shards, refs) for shards in allocated.values())
                if used + opens + buffer > self._memory.capacity_bytes:
                    device, capacity = self._memory.device, self._memory.capacity_bytes
                    raise OutOfDeviceMemory(device, op.id, opens + buffer, used, capacity)
                used += opens - sum(_bytes_of(held.get(site.unit, {}), refs) for site in op.frees)

    def _shards(self, emu: Emu, state: StateSpec | None) -> Shards:
        if state is None:
            raise StoreError(f"endpoint {self.endpoint}: the program opens {emu.unit} without the state of {emu.stage}")
        return state.shards(emu.layout, emu.rank_of(self.endpoint), emu.optimizer)

    def _units_of(self, op: Op) -> set[UnitId]:
        """The units at this endpoint that an operation reads, writes, makes or frees."""
        sites = {*op.frees, *(site for move in op.local for site in (move.source, move.target))}
        for exchange in op.exchanges:
            sites |= exchange.sources | exchange.sinks
        return {emu.unit for emu in op.makes} | {site.unit for site in sites if site.endpoint == self.endpoint}


def _bytes_of(shards: Shards, refs: frozenset[TensorRef]) -> int:
    """Bytes of some tensors."""
    return shards_bytes({tensor: boxes for tensor, boxes in shards.items() if tensor.ref in refs})
