"""The worker: one process per device, a thin shell around `NativeEndpoint`.

Its methods run in lanes (actors/lanes.py). They return facts, or raise; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nereus.control.events import (
    Committed,
    DeviceReady,
    DigestsTaken,
    Installed,
    OpCompleted,
    Quiesced,
    Seeded,
    Settled,
    StateRead,
    StateWritten,
)
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.tensors import Kind
from nereus.spec.job import Job
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Program

if TYPE_CHECKING:
    from nereus.rl.assemble import Piece
    from nereus.rl.endpoint import Answer, NativeEndpoint, Status
    from nereus.rl.programs import Request
    from nereus.transport.abort import AbortWatch

COLLECTIVE_TIMEOUT_S = 60.0
"""Seconds until a collective whose peer never comes fails by itself: longer than any wait of a step; an abort is faster."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is told when it is made."""

    endpoint: EndpointId
    device: DeviceId
    job: Job
    rendezvous: tuple[str, int]
    weights: Path | None
    """A safetensors file with the first weights; None for random ones."""


class Worker:
    """One endpoint on one device."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._endpoint: NativeEndpoint
        self._watch: AbortWatch
        self._ready: DeviceReady | None = None

    def start(self) -> DeviceReady:
        """Import torch, connect to the rendezvous, warm up, and serve the device. Asked again, it answers as before."""
        from actors.native import abort_watch, communicator_pool, device_flops, native_endpoint

        if self._ready is None:
            pool = communicator_pool(self._spec, COLLECTIVE_TIMEOUT_S)
            self._endpoint = native_endpoint(self._spec, pool)
            self._watch = abort_watch(self._spec, pool)
            flops = device_flops(pool.device, self._spec.job.dtype)
            self._ready = DeviceReady(device=self._spec.device, endpoint=self._spec.endpoint, peak_flops=flops)
        return self._ready

    def seed(self, emus: tuple[Emu, ...], states: dict[str, StateSpec]) -> Seeded:
        self._endpoint.seed(emus, states)
        return Seeded(endpoint=self._spec.endpoint)

    def save(self, tag: str, folder: Path, emus: tuple[Emu, ...], states: dict[str, StateSpec]) -> StateWritten:
        return self._endpoint.save(tag, folder, emus, states)

    def restore(self, epoch: int, folder: Path, emus: tuple[Emu, ...], states: dict[str, StateSpec]) -> StateRead:
        return self._endpoint.restore(epoch, folder, emus, states)

    def quiesce(self, epoch: int) -> Quiesced:
        return self._endpoint.quiesce(epoch)

    def install(self, program: Program) -> Installed:
        return self._endpoint.install(program)

    def run_op(self, op: str) -> OpCompleted:
        return self._endpoint.run_op(op)

    def settle(self, epoch: int, _aborted: object) -> Settled:
        """Nothing runs in the lane before this call any more; Ray has waited for the abort that it is given."""
        return self._endpoint.settle(epoch)

    def digest(self, tag: str, units: Iterable[UnitId]) -> DigestsTaken:
        return self._endpoint.digest(tag, units)

    def bind(self, epoch: int, emus: tuple[Emu, ...], keep: frozenset[GroupKey]) -> Committed:
        return self._endpoint.bind(epoch, emus, keep)

    def compute(self, unit: UnitId, epoch: int, request: Request) -> Answer:
        return self._endpoint.compute(unit, epoch, request)

    def read(self, unit: UnitId, kind: Kind) -> tuple[Piece, ...]:
        return self._endpoint.read(unit, kind)

    def status(self) -> Status:
        return self._endpoint.status()
