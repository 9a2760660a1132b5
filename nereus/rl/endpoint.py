"""All that one native worker process owns, without Ray: shards, communicators, the executor and the stage programs.

    transfer lane: seed, install, run_op, digest, save, restore      compute lane: compute, quiesce
    control lane:  bind, read, status

A call for a unit that is not bound in the caller's epoch is refused, so that nothing left over from before a transition can
touch the units after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from nereus.control.events import (
    Committed,
    DigestsTaken,
    Installed,
    OpCompleted,
    Quiesced,
    Settled,
    StateRead,
    StateWritten,
)
from nereus.emu.groups import RankGroups, rank_groups
from nereus.emu.unit import Emu
from nereus.errors import StaleUnitError
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.saving import shares
from nereus.layout.tensors import Kind
from nereus.rl.assemble import Piece
from nereus.rl.channels import Channels
from nereus.rl.pacing import Pacer, PaceReport
from nereus.rl.programs import Request, Result, Transients, run
from nereus.rl.view import UnitView
from nereus.rl.weights import WeightSource
from nereus.runtime.checkpoints import load
from nereus.spec.model import ModelShape
from nereus.transition.collectives import COMPUTE, TRANSFER, GroupKey
from nereus.transition.ops import Program
from nereus.transport.checkpoint import read_units, write_share
from nereus.transport.communicators import Communicators
from nereus.transport.executor import Executor
from nereus.transport.memory import DeviceMemory
from nereus.transport.ports import Shards
from nereus.transport.store import UnitStore
from nereus.transport.streams import Streams

CONTROL = "control"
"""The lane that binds and reads: it has no communicator, and on a GPU a stream like the others."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank's part of a request came to."""

    endpoint: EndpointId
    result: Result
    pace: PaceReport


@dataclass(frozen=True, slots=True)
class Status:
    """What a device holds."""

    endpoint: EndpointId
    used_bytes: int
    peak_bytes: int
    """Highest use since the last status or commit."""
    units: tuple[UnitId, ...]


class NativeEndpoint:
    """One endpoint: a process on one device."""

    def __init__(
        self,
        endpoint: EndpointId,
        device: torch.device,
        memory: DeviceMemory,
        speed: float | None,
        shape: ModelShape,
        communicators: Communicators,
        weights: WeightSource,
    ) -> None:
        self._endpoint, self._device, self._memory = endpoint, device, memory
        self._shape, self._weights, self._communicators = shape, weights, communicators
        self._pacer = Pacer(speed)
        self._streams = Streams(device)
        self._store = UnitStore(device, memory, self._streams)
        self._executor = Executor(self._store, communicators, memory, endpoint, self._streams)
        self._transients = Transients()
        self._completed: dict[str, OpCompleted] = {}
        self._written: StateWritten | None = None
        self._epoch = -1
        self._bound: dict[UnitId, tuple[Emu, RankGroups]] = {}

    def seed(self, emus: Iterable[Emu], states: dict[str, StateSpec]) -> None:
        """Open newborn units with the job's first weights, zero moments and zero counters."""
        with self._streams.lane(TRANSFER):
            for emu in emus:
                if self._endpoint in emu.endpoints and emu.unit not in self._store.catalog():
                    self._fill(emu, states[emu.stage].shards(emu.layout, emu.rank_of(self._endpoint), emu.optimizer))

    def quiesce(self, epoch: int) -> Quiesced:
        """Nothing computes here any more. Called in the compute lane, after all that was submitted to it before."""
        self._streams.wait(COMPUTE)
        return Quiesced(endpoint=self._endpoint, epoch=epoch)

    def save(self, tag: str, folder: Path, emus: Iterable[Emu], states: dict[str, StateSpec]) -> StateWritten:
        """Write this endpoint's share of a checkpoint into an unfinished folder; asked again, it answers as before."""
        if self._written is None or self._written.tag != tag:
            parts = shares(states, emus)[self._endpoint]
            with self._streams.lane(TRANSFER):
                file, digests = write_share(self._store, parts, folder / f"{self._endpoint}.safetensors")
            self._written = StateWritten(
                endpoint=self._endpoint,
                tag=tag,
                file=file.name,
                num_bytes=file.num_bytes,
                sha256=file.sha256,
                digests=tuple(digests),
            )
        return self._written

    def restore(self, epoch: int, folder: Path, emus: Iterable[Emu], states: dict[str, StateSpec]) -> StateRead:
        """Open newborn units and fill them from a checkpoint."""
        with self._streams.lane(TRANSFER):
            num_bytes = read_units(self._store, self._endpoint, emus, states, folder, load(folder))
        self._streams.wait(TRANSFER)
        return StateRead(endpoint=self._endpoint, epoch=epoch, num_bytes=num_bytes)

    def install(self, program: Program) -> Installed:
        """Make the program's communicators and keep its operations; nothing moves."""
        made, reused, seconds = self._executor.install(program)
        self._completed.clear()
        return Installed(
            endpoint=self._endpoint, epoch=program.epoch, setup_s=seconds, groups_made=made, groups_reused=reused
        )

    def run_op(self, op: str) -> OpCompleted:
        """This endpoint's part of an installed operation; asked again after it has run, it answers as before.

        A stream takes part again instead, since another member may not have ended it.
        """
        if op not in self._completed:
            received, seconds = self._executor.run(op)
            fact = OpCompleted(endpoint=self._endpoint, op=op, bytes_received=received, seconds=seconds)
            if op in self._executor.installed:
                return fact
            self._completed[op] = fact
        return self._completed[op]

    def settle(self, epoch: int) -> Settled:
        """What of a transition that was ended is done here; half-received tensors are dropped."""
        self._executor.settle()
        done = tuple(sorted(op for op in self._completed if op.startswith(f"e{epoch}.")))
        return Settled(endpoint=self._endpoint, epoch=epoch, done=done)

    def digest(self, tag: str, units: Iterable[UnitId]) -> DigestsTaken:
        """Hash what this endpoint holds of these units."""
        return DigestsTaken(endpoint=self._endpoint, tag=tag, digests=tuple(self._executor.digest(units).items()))

    def bind(self, epoch: int, emus: tuple[Emu, ...], keep: frozenset[GroupKey]) -> Committed:
        """Serve these units from now on; release all others, and the communicators that are not in `keep`."""
        if epoch < self._epoch:
            raise StaleUnitError(f"endpoint {self._endpoint} serves epoch {self._epoch}; epoch {epoch} is behind it")
        self._transients.drop()
        bound: dict[UnitId, tuple[Emu, RankGroups]] = {}
        for emu in emus:
            if self._endpoint in emu.endpoints:
                replicas = tuple(other for other in emus if other.stage == emu.stage)
                rank = emu.rank_of(self._endpoint)
                bound[emu.unit] = emu, rank_groups(replicas, replicas.index(emu), rank, self._shape.num_kv_heads)
        self._executor.bind(set(bound), {key for key in keep if self._endpoint in key.members})
        self._bound, self._epoch = bound, epoch
        peak = self._memory.peak_bytes
        self._memory.reset_peak()
        return Committed(endpoint=self._endpoint, epoch=epoch, peak_bytes=peak)

    def compute(self, unit: UnitId, epoch: int, request: Request) -> Answer:
        """This rank's part of a request on a bound unit, at the device's declared speed."""
        if epoch != self._epoch or unit not in self._bound:
            raise StaleUnitError(
                f"endpoint {self._endpoint} serves epoch {self._epoch}; unit {unit} of epoch {epoch} is not bound here"
            )
        emu, groups = self._bound[unit]
        view = UnitView(
            emu=emu,
            rank=emu.rank_of(self._endpoint),
            shape=self._shape,
            store=self._store,
            channels=Channels.of(groups, self._communicators, self._pacer),
            memory=self._memory,
            pacer=self._pacer,
            torch_device=self._device,
        )
        with self._streams.lane(COMPUTE), self._pacer.run():
            result = run(view, request, self._transients)
        return Answer(self._endpoint, result, self._pacer.report)

    def read(self, unit: UnitId, kind: Kind) -> tuple[Piece, ...]:
        """Copies of what this endpoint holds of a unit, one kind of state."""
        held = self._store.catalog()[unit]
        with self._streams.lane(CONTROL):
            return tuple(
                Piece(tensor.ref, box, self._store.read(unit, tensor.ref, box).cpu().clone())
                for tensor, boxes in held.items()
                if tensor.kind is kind
                for box in boxes
            )

    def status(self) -> Status:
        """Bytes in use and the peak since the last call."""
        status = Status(
            endpoint=self._endpoint,
            used_bytes=self._memory.used_bytes,
            peak_bytes=self._memory.peak_bytes,
            units=tuple(sorted(self._bound)),
        )
        self._memory.reset_peak()
        return status

    def _fill(self, emu: Emu, shards: Shards) -> None:
        self._store.open(emu.unit, shards)
        for tensor, boxes in shards.items():
            for box in boxes:
                view = self._store.write(emu.unit, tensor.ref, box)
                view.copy_(self._weights.read(tensor, box)) if tensor.kind is Kind.PARAMETER else view.zero_()
                self._store.land(emu.unit, tensor.ref, box)
