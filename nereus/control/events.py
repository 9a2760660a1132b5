"""Everything that can happen to a job, as past-tense facts. The core sees the world only through these.

Facts of ports name the call that they complete (operation, epoch, tag or cycle), so that what is stale is recognised and
dropped. All of them are plain values, and are journaled as JSON before they are acted on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nereus.control.report import StepReport
from nereus.emu.digest import BoxDigest
from nereus.emu.plan import DeviceId
from nereus.layout.catalog import EndpointId, UnitId
from nereus.policy.proposal import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """The job wants its first units, on these devices."""

    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReady:
    """A new endpoint serves a device."""

    device: DeviceId
    endpoint: EndpointId
    peak_flops: float
    """FLOP/s of the whole device or core, before any declared speed: a short product, timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFailed:
    """A new endpoint ended, or gave up, before it could serve its device."""

    device: DeviceId
    endpoint: EndpointId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """An endpoint holds the first state of its newborn units."""

    endpoint: EndpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An endpoint has its program: communicators made, memory checked, nothing moved."""

    endpoint: EndpointId
    epoch: int
    setup_s: float
    groups_made: int
    groups_reused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCompleted:
    """One endpoint has done its part of an operation."""

    endpoint: EndpointId
    op: str
    bytes_received: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFailed:
    """One endpoint could not do what it was asked."""

    endpoint: EndpointId
    op: str
    """The operation, or the verb and what it was for: "install e3", "digest e3.after", "bind e3", "seed"."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """An endpoint has been aborted, and runs no operation any more."""

    endpoint: EndpointId
    epoch: int
    """Of the transition that was ended."""
    done: tuple[str, ...]
    """Its operations that this endpoint has done; streams are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestsTaken:
    """The digests of every box that an endpoint holds of the units asked for."""

    endpoint: EndpointId
    tag: str
    """Which proof they belong to: the epoch, and whether before or after."""
    digests: tuple[tuple[UnitId, tuple[BoxDigest, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """An endpoint serves the units of this epoch, and has released the others."""

    endpoint: EndpointId
    epoch: int
    peak_bytes: int
    """Highest use of its device's memory during the transition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDied:
    """A process that held shards is gone, with all that it held."""

    endpoint: EndpointId
    during: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStopped:
    """The loop has given up its step before an update of it, and waits: devices of the plan leave before its end."""

    step: int
    """Steps that are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLost:
    """The loop could not finish a step, since a process died; all others are quiet, and it waits for a release."""

    endpoint: EndpointId
    during: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryReached:
    """The loop has completed a step and waits for its release."""

    report: StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChanged:
    """The pool tells what comes and what goes."""

    step: int
    """Completed RL steps."""
    arriving: tuple[DeviceId, ...]
    """Devices that may be started now."""
    leaving: Mapping[DeviceId, int]
    """Devices that go, and the step after which they are gone."""
    gone: tuple[DeviceId, ...] = ()
    """Devices whose notice has run out: whatever is on them ends now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReady:
    """The planner has answered a request."""

    cycle: int
    proposals: tuple[Proposal, ...]
    current_l_step_s: float
    """Predicted seconds per step of the plan in force, on the same snapshot."""
    seconds: float
    """How long the planner took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanRequested:
    """An operator asks for a replan now."""

    command: str
    """The id of the request."""
    dry_run: bool
    """Decide and record, but change nothing."""
    forced: bool
    """Carry out the best feasible plan even if it does not pay."""


class Verb(StrEnum):
    """What an operator can ask for beside a replan."""

    PAUSE = "pause"
    """Hold the loop at the next boundary."""
    RESUME = "resume"
    """Let it go."""
    ABORT = "abort"
    """End what is planned or on the move: rolled back before the first Destroy, else carried to its plan."""
    ROLLBACK = "rollback"
    """Go back to the plan before the one in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAsked:
    """An operator wants something of the job."""

    command: str
    """The id of the request."""
    verb: Verb


Event = (
    JobStarted
    | DeviceReady
    | DeviceFailed
    | Seeded
    | Installed
    | OpCompleted
    | OpFailed
    | Settled
    | DigestsTaken
    | Committed
    | EndpointDied
    | StepLost
    | StepStopped
    | BoundaryReached
    | PoolChanged
    | PlanReady
    | ReplanRequested
    | OperatorAsked
)
