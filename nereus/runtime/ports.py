"""The ports: what a job and its endpoints must be able to do, whoever runs them.

A verb returns at once; what it caused is reported later as a fact. Facts are read with `next_fact`, from the thread that
called the verbs. A framework implements these ports instead of the native actors, and nothing above or below changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.runtime.facts import Fact
from nereus.transition.ops import GroupKey, Op, Program


@dataclass(frozen=True, slots=True)
class JobDescription:
    """What a job tells about itself, once."""

    states: Mapping[str, StateSpec]
    """The logical state of each model-stage."""
    trains: str
    """The model-stage whose weights are synchronized ..."""
    generates: str
    """... to this one."""
    global_batch: int
    """Sequences per RL step; fixed under any plan."""


class FactSource(Protocol):
    """Where completions arrive."""

    def next_fact(self, timeout_s: float) -> Fact | None:
        """The next fact in order of arrival; None when nothing arrived in time. Called by the controller, blocks."""


class EndpointPort(FactSource, Protocol):
    """The processes that hold shards. Called by the controller only; none of the verbs blocks."""

    def install(self, program: Program) -> None:
        """Make the program's communicators and keep its operations -> Installed or OpFailed."""

    def run(self, op: Op) -> None:
        """Start an installed operation on all its members -> OpCompleted or OpFailed of each."""

    def digest(self, emus: Iterable[Emu]) -> None:
        """Hash the logical state of these units -> DigestsTaken of each endpoint."""

    def bind(self, epoch: int, emus: tuple[Emu, ...], endpoints: Iterable[EndpointId], keep: frozenset[GroupKey]) -> None:
        """Serve exactly these units from now on and release all others, and communicators outside `keep`.

        -> Committed of each endpoint. Idempotent.
        """

    def abort(self, members: Iterable[EndpointId]) -> None:
        """Unblock every collective of these endpoints; their operations end in OpFailed."""


class JobPort(FactSource, Protocol):
    """The RL job. Called by the controller only; all but `describe` and `compute_groups` report later."""

    def describe(self) -> JobDescription:
        """Stages, shapes and batch rules."""

    def compute_groups(self, emus: Iterable[Emu]) -> frozenset[GroupKey]:
        """The communicators that the job's own computation needs on these units, to be made with the transition's."""

    def seed(self, emus: Iterable[Emu]) -> None:
        """Fill the newborn units of a job that begins with its first state -> Seeded of each endpoint."""

    def spawn(self, devices: Iterable[DeviceId]) -> None:
        """Start an endpoint on each device -> DeviceReady of each."""

    def retire(self, endpoints: Iterable[EndpointId]) -> None:
        """End endpoints that hold no bound unit."""
