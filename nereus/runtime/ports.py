"""The ports: what a job, its endpoints and its planner must be able to do, whoever runs them.

A verb returns at once; what it caused is posted later as an event. A framework implements these ports instead of the native
actors, and nothing above or below changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from nereus.control.checkpoint import StageDigests
from nereus.control.effects import Effect
from nereus.control.events import Event, StateWritten
from nereus.control.report import Release
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from nereus.policy.snapshot import Snapshot
from nereus.runtime.journal import Entry
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Op, Program


class EndpointPort(Protocol):
    """The processes that hold shards. Called by the Driver only; none of the verbs blocks; all are idempotent by epoch."""

    def install(self, programs: Iterable[Program]) -> None:
        """Make each program's communicators and keep its operations -> Installed or OpFailed of each endpoint."""

    def run(self, op: Op) -> None:
        """Start an installed operation on all its members -> OpCompleted or OpFailed of each."""

    def digest(self, tag: str, emus: Iterable[Emu]) -> None:
        """Hash the logical state of these units -> DigestsTaken of each endpoint."""

    def bind(self, epoch: int, emus: tuple[Emu, ...], endpoints: Iterable[EndpointId], keep: frozenset[GroupKey]) -> None:
        """Serve exactly these units from now on; release all others, and communicators outside `keep` -> Committed."""

    def abort(self, epoch: int, members: Iterable[EndpointId]) -> None:
        """Unblock every collective of these endpoints; their operations end in OpFailed, or as they would have.

        -> Settled of each, once none of them runs an operation and the abort cannot hit what comes later.
        """


class JobPort(Protocol):
    """The RL job. Called by the Driver only; none of the verbs blocks."""

    def spawn(self, devices: Iterable[DeviceId]) -> None:
        """Start an endpoint on each device -> DeviceReady of each."""

    def retire(self, endpoints: Iterable[EndpointId]) -> None:
        """End endpoints that hold no bound unit, and clear away after those that died."""

    def seed(self, emus: Iterable[Emu]) -> None:
        """Fill the newborn units of a job that begins with its first state -> Seeded of each endpoint."""

    def quiesce(self, epoch: int, emus: Iterable[Emu], deadline_s: float) -> None:
        """Let the endpoints of these units end what they compute -> Quiesced of each, or OpFailed at the deadline.

        Nobody else is asked, or waits. A loop that is held at a boundary computes nothing: all answer at once.
        """

    def release(self, release: Release) -> None:
        """Let the loop go on from the boundary at which it waits."""

    def stop(self, reason: str) -> None:
        """End the job: the loop's wait at the boundary ends with this reason."""


class PlannerPort(Protocol):
    """The planner. Called by the Driver only; does not block."""

    def propose(self, cycle: int, snapshot: Snapshot, top: int) -> None:
        """The best proposals on a snapshot -> PlanReady. A newer request replaces an older one."""


class CheckpointPort(Protocol):
    """Where the state of a job is saved. Called by the Driver only; none of the verbs blocks; all are idempotent.

    All who write and read see one folder: that is the contract. What has no final name is never read.
    """

    def save(self, tag: str, emus: Iterable[Emu], endpoints: Iterable[EndpointId]) -> None:
        """Write the share of each of these endpoints -> StateWritten of each, or OpFailed "save TAG".

        Shares are those of `nereus.layout.saving` over these units. Nothing is changed meanwhile: the loop waits.
        """

    def seal(self, tag: str, step: int, written: Iterable[StateWritten], digests: StageDigests) -> None:
        """Make a checkpoint of what was written, with the loop's own state -> StateSealed, or OpFailed "seal TAG"."""

    def restore(self, epoch: int, folder: str, emus: Iterable[Emu]) -> None:
        """Fill newborn units from a checkpoint -> StateRead of each of their endpoints, or OpFailed "restore eEPOCH"."""


class JournalPort(Protocol):
    """Where the Driver writes what happens, before it acts on it. Called by the Driver only; what is written is safe."""

    def append(self, at_s: float, event: Event) -> int:
        """Write an event; returns its sequence number, from 1 on."""

    def acted(self, seq: int, effects: tuple[Effect, ...]) -> None:
        """Note what the core asked for."""

    def entries(self) -> Iterator[Entry]:
        """All events in order."""


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports of one job."""

    endpoints: EndpointPort
    job: JobPort
    planner: PlannerPort
    checkpoints: CheckpointPort
