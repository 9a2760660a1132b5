"""The phases of a job, each with just the data that is valid in it; allowed.py has the table of changes.

Idle -> Starting -> Steady <-> Planning -> Admitted -> Transitioning -> Steady        any -> Stopped
                                                        |      ^
                                                        Settling: aborted, then back on whole units
    Saving: at a boundary                 nothing to move from: Waiting -> Planning -> Restoring -> Transitioning
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nereus.control.carrying import Carrying
from nereus.control.events import ReplanRequested, StateWritten
from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from nereus.policy.triggers import Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Nothing has been asked for yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """The first devices start, then the first units are made on them."""

    devices: frozenset[DeviceId]
    """Devices that are not ready yet."""
    installing: frozenset[EndpointId] = frozenset()
    seeding: frozenset[EndpointId] = frozenset()
    binding: frozenset[EndpointId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The job runs on its plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """The planner works on a snapshot; the job runs on."""

    cycle: int
    triggers: tuple[Trigger, ...]
    horizon_steps: float
    usable: tuple[DeviceId, ...]
    """The pool of the snapshot."""
    request: ReplanRequested | None = None
    """The operator's request that it answers."""
    holding: bool = False
    """Whether the loop waits for the answer."""
    patient: bool = False
    """Whether it waits only since the answer costs little of a step: it would go on without it."""
    recovering: bool = False
    """Whether units are gone, so that the job stops if no plan is found."""
    fresh: bool = False
    """Whether it is about starting anew from a checkpoint, since no transition leads on."""

    @property
    def is_urgent(self) -> bool:
        return any(trigger.urgent for trigger in self.triggers)

    @property
    def must_leave(self) -> bool:
        """Whether the loop waits since the plan in force cannot go on, or units of it are gone."""
        return self.recovering or (self.holding and self.is_urgent and not self.patient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A plan was admitted; the next boundary carries it out, if pool and units are still as in its snapshot."""

    cycle: int
    reason: str
    usable: tuple[DeviceId, ...]
    epoch: int
    """Of the plan in force when it was decided."""
    changed: Mapping[str, StagePlan]
    l_tran_s: float
    """Predicted seconds of the transition."""
    urgent: tuple[Trigger, ...] = ()
    """Why it has to be; empty for one that only pays."""
    saves_s: float | None = None
    """Predicted saving per step of one that has to pay; None for others."""
    recovering: bool = False
    """Whether units are gone, so that the plan in force cannot go on."""


class End(StrEnum):
    """What a transition that ended before its commit came to."""

    ROLLED_BACK = "rolled back"
    """All units that were in force before it are so again."""
    CARRIED_THROUGH = "carried through"
    """All units of its target are in force."""
    PARTED = "parted"
    """The units that are intact make another plan, which is replaced at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """Why whole units are bound again: a transition ended before its commit."""

    epoch: int
    """Of the first transition that did."""
    reason: str
    end: End
    target: Mapping[str, StagePlan]
    """The stage plans that it was to lead to."""
    triggers: tuple[Trigger, ...]
    """Of that transition if it had to be, so that it is looked at again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The state of a boundary is written; the loop waits there."""

    tag: str
    reason: str
    waiting: frozenset[EndpointId]
    """Endpoints that have not written their share; none while it is being sealed."""
    began_s: float
    then: Planning | None
    """What found no plan to leave for; None for a save that is due."""
    why: str = ""
    """Why it found none."""
    written: tuple[StateWritten, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """New workers read the units of a plan from a checkpoint; the loop waits."""

    epoch: int
    stages: Mapping[str, StagePlan]
    emus: Mapping[str, tuple[Emu, ...]]
    reason: str
    urgent: tuple[Trigger, ...]
    waiting: frozenset[EndpointId]
    """Endpoints that have not read their part."""
    began_s: float
    num_bytes: int
    """Read so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitioning:
    """State moves; the loop waits at the boundary."""

    carrying: Carrying
    reason: str
    changed: Mapping[str, StagePlan]
    l_tran_s: float | None
    """Predicted seconds; None for one that only leads back to whole units."""
    joined: tuple[DeviceId, ...] = ()
    leaving: tuple[DeviceId, ...] = ()
    """Devices that a script ends after it."""
    urgent: tuple[Trigger, ...] = ()
    """Why it has to be; empty for one that only pays, or that a script asks for."""
    saves_s: float | None = None
    """Predicted saving per step of one that has to pay; None for others."""
    regroup: Regroup | None = None
    """Set where it leads back to whole units instead of to a new plan."""
    restoring: Restoring | None = None
    """Set where its units were read from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """A transition is being ended: its endpoints are aborted, and what they still run is waited for."""

    moving: Transitioning
    reason: str
    waiting: frozenset[EndpointId]
    done: Mapping[EndpointId, frozenset[str]] = field(default_factory=dict)
    """The operations that those who have answered have done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A scripted transition waits for its devices; the loop waits at the boundary."""

    devices: frozenset[DeviceId]
    joined: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """An operator holds the loop at a boundary."""

    admitted: Admitted | None = None
    """What is carried out when it is let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """No plan fits what is left, and devices may come: the loop waits for one that does. Or workers start anew."""

    triggers: tuple[Trigger, ...]
    holding: bool
    """Whether the loop waits already; if not, it will, since units that it uses are gone."""
    recovering: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The job cannot go on."""

    reason: str


Phase = (
    Idle
    | Starting
    | Steady
    | Planning
    | Admitted
    | Joining
    | Transitioning
    | Settling
    | Paused
    | Waiting
    | Saving
    | Restoring
    | Stopped
)
