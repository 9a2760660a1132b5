"""Everything that the core can ask for, as imperatives. A Driver starts them; what they lead to comes back as events.

They are idempotent by what they name (epoch, operation, cycle, boundary), so that a restarted controller can ask again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nereus.control.announced import JobDescribed, Replanned
from nereus.control.checkpoint import Restored, Saved, StageDigests
from nereus.control.events import StateWritten
from nereus.control.report import Release, StepReport
from nereus.emu.plan import DeviceId, Plan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from nereus.policy.admission import Verdict
from nereus.policy.proposal import Proposal
from nereus.policy.snapshot import Snapshot
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Op, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnDevices:
    """Start an endpoint on each device -> DeviceReady."""

    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireEndpoints:
    """End endpoints that hold nothing any more."""

    endpoints: tuple[EndpointId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedUnits:
    """Fill newborn units with the job's first state -> Seeded."""

    emus: tuple[Emu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuiesceUnits:
    """Let the endpoints of these units end what they compute -> Quiesced; the others are not asked."""

    epoch: int
    """Of the transition that needs it."""
    emus: tuple[Emu, ...]
    deadline_s: float
    """Seconds; who has not ended by then has failed -> OpFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPrograms:
    """Make communicators and keep operations -> Installed."""

    programs: tuple[Program, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOp:
    """Start an installed operation on all its members -> OpCompleted."""

    op: Op


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortOps:
    """Unblock these endpoints, and wait until none of them runs an operation -> Settled."""

    epoch: int
    endpoints: tuple[EndpointId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeDigests:
    """Hash the logical state of these units -> DigestsTaken."""

    tag: str
    emus: tuple[Emu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BindUnits:
    """Serve exactly these units from now on -> Committed."""

    epoch: int
    emus: tuple[Emu, ...]
    endpoints: tuple[EndpointId, ...]
    keep: frozenset[GroupKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState:
    """Write the logical state of these units, each endpoint its share -> StateWritten of each endpoint."""

    tag: str
    emus: tuple[Emu, ...]
    endpoints: tuple[EndpointId, ...]
    """Those that have a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealState:
    """Make a checkpoint of what was written -> StateSealed."""

    tag: str
    step: int
    written: tuple[StateWritten, ...]
    digests: StageDigests


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreState:
    """Fill newborn units from a checkpoint -> StateRead of each endpoint."""

    epoch: int
    folder: str
    emus: tuple[Emu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """Ask the planner for the best proposals on a snapshot -> PlanReady. A newer request replaces an older one."""

    cycle: int
    snapshot: Snapshot
    top: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseBoundary:
    """Let the loop go on."""

    release: Release


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """The job cannot go on."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided on one candidate, and why."""

    step: int
    cycle: int
    triggers: tuple[str, ...]
    """The reasons of the replan."""
    target: Mapping[str, str]
    """Layout and devices of each model-stage that would change."""
    verdict: Verdict
    proposal: Proposal
    command: str | None = None
    """The id of the operator's request that it answers."""
    is_dry_run: bool = False
    """Whether nothing comes of it, whatever the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRecord:
    """A transition that was carried out."""

    step: int
    epoch: int
    trigger: str
    primitives: Mapping[str, int]
    joined: tuple[DeviceId, ...]
    left: tuple[DeviceId, ...]
    plan: Plan
    outcome: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A transition ended before its commit, and the job stands on whole units again."""

    step: int
    epoch: int
    """Of the transition that ended."""
    reason: str
    end: str
    """rolled back; carried through; or parted: then a plan from the units that are intact follows."""
    plan: Plan
    """What stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRead:
    """What an opportunistic transition has saved over the steps after it."""

    step: int
    epoch: int
    predicted_s: float
    """Seconds per step that were to be saved."""
    realised_s: float
    """Seconds per step that were: mean before less mean after."""
    returns: bool
    """Whether the plan before comes back because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """The loop has waited for devices, since no plan did fit, or for workers that started anew."""

    step: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What an operator's request comes to."""

    step: int
    command: str
    verb: str
    done: bool
    """False where it cannot be."""
    reason: str
    """One sentence: what happens now, or why nothing does."""
    paused: bool
    """Whether the loop is held at its boundaries from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The first units are in place."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesChanged:
    """The pool is another one."""

    step: int
    ready: Mapping[DeviceId, EndpointId]
    """Devices that are there, and who serves them."""
    leaving: Mapping[DeviceId, int]
    """Of these, those on notice, and the step after which they are gone."""


News = (
    JobDescribed
    | Started
    | DevicesChanged
    | StepReport
    | Replanned
    | Decision
    | TransitionRecord
    | Interrupted
    | Answered
    | CanaryRead
    | Waited
    | Saved
    | Restored
)
"""What is told to whoever watches, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Tell whoever watches."""

    news: News


Effect = (
    SpawnDevices
    | RetireEndpoints
    | SeedUnits
    | QuiesceUnits
    | InstallPrograms
    | RunOp
    | AbortOps
    | TakeDigests
    | BindUnits
    | SaveState
    | SealState
    | RestoreState
    | RequestPlan
    | ReleaseBoundary
    | StopJob
    | Publish
)
