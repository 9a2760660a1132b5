"""A pool that is not ours: what a job may use now, and what it is told when that changes.

    cluster or controller --Offer (all of it, again and again)--> pool_change --PoolChanged, the difference--> core

An offer says what is, not what became of it, so that one that is lost or comes twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor

from nereus.control.events import PoolChanged
from nereus.control.phases import Idle, Joining, Restoring, Saving, Settling, Starting, Stopped, Transitioning
from nereus.control.state import JobState
from nereus.emu.plan import DeviceId
from nereus.policy.seating import Node, PoolDevice, Seats, Shape, free_devices, seated, still_there

MOVING = (Idle, Joining, Restoring, Saving, Settling, Starting, Stopped, Transitioning)
"""Phases in which a device without a unit may get one, or be read from."""

SOON_STEPS = 2
"""Steps before the end of a notice at which a boundary holds the loop for a plan: the one that runs, and the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a job may use."""

    seats: Seats
    """Its devices, those that it must leave included."""
    leaving: Mapping[DeviceId, float | None] = field(default_factory=dict)
    """Of these, those that it must leave, and when they are gone, in seconds since 1970; None: once it has left them."""
    number: int = 0
    """Later offers have larger ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What a job has, as its head tells it."""

    seats: Seats
    """The devices whose workers it may run. What is not here is free, if it was to be left by the offer of `heard`."""
    heard: int
    """The number of the latest offer that it was told of; 0 before the first, and after its controller has died."""
    used: frozenset[DeviceId]
    """Devices with a unit of the plan in force."""
    step: int
    """Completed RL steps."""
    epoch: int
    phase: str


def offer_of_all(shape: Shape, told: Seats, nodes: Sequence[Node], wanted: Iterable[DeviceId]) -> Offer:
    """What a job that has a cluster to itself may use of these nodes: what it was told of, and wanted devices beside it."""
    kept = still_there(told, nodes)
    ends = {node.id: node.gone_s for node in nodes if node.is_leaving}
    more = seated(shape, kept, free_devices(nodes, set(kept.values())), wanted)
    leaving = {place: ends[seat.node] for place, seat in kept.items() if seat.node in ends}
    return Offer(seats={**kept, **more}, leaving=leaving)


def used(state: JobState) -> frozenset[DeviceId]:
    """The devices on which something would be lost."""
    held = {endpoint for emu in state.bound for endpoint in emu.endpoints}
    return state.plan.devices | {device for device, endpoint in state.endpoint_of.items() if endpoint in held}


def pool_change(state: JobState, told: Seats, offer: Offer, now_s: float) -> PoolChanged | None:
    """What a job that was told of these seats must be told now; None where nothing has changed.

    A device that must be left is told so first, used or not: one that goes untold counts as lost. It is gone as soon as
    nothing is on it, and at the latest when its notice has run out, if there is an end to it. A place that has another
    device than before is gone first, and arrives the next time.
    """
    if isinstance(state.phase, Idle | Starting | Stopped):
        return None
    held = used(state)
    is_still = not isinstance(state.phase, MOVING)
    gone = tuple(
        sorted(
            place
            for place, seat in told.items()
            if offer.seats.get(place) != seat or (place in offer.leaving and _is_left(state, offer, place, held, is_still))
        )
    )
    leaving = {
        place: state.step + 1 + _steps_left(state, offer.leaving[place], now_s)
        for place in sorted(offer.leaving)
        if place in told and place not in gone and (place not in state.leaving or _is_put_off(state, offer, place))
    }
    arriving = tuple(sorted(place for place in offer.seats if place not in told and place not in offer.leaving))
    if not (gone or leaving or arriving):
        return None
    return PoolChanged(step=state.step, arriving=arriving, leaving=leaving, gone=gone)


def _is_left(state: JobState, offer: Offer, place: DeviceId, held: frozenset[DeviceId], is_still: bool) -> bool:
    if place in state.endpoint_of and place not in state.leaving:
        return False
    ran_out = offer.leaving[place] is not None and state.leaving.get(place, state.step + 1) <= state.step
    # One that still starts must be let: it could not be ended before it has a name.
    return (place not in held and is_still and place not in state.starting) or ran_out


def _is_put_off(state: JobState, offer: Offer, place: DeviceId) -> bool:
    """Whether a notice without an end is about to run out: it is given again, so that the job goes on until a plan fits."""
    return offer.leaving[place] is None and state.leaving[place] <= state.step + SOON_STEPS


def _steps_left(state: JobState, gone_s: float | None, now_s: float) -> int:
    """Whole steps, as long as the last ones were, until a device is gone: at least the one that runs."""
    if gone_s is None:
        return max(state.config.policy.notice_steps, SOON_STEPS)
    if not state.recent_s:
        return state.config.policy.notice_steps
    mean_s = sum(state.recent_s) / len(state.recent_s)
    return max(1, floor((gone_s - now_s) / mean_s)) if mean_s > 0 else state.config.policy.notice_steps


def seats_after(told: Seats, change: PoolChanged, offer: Offer) -> dict[DeviceId, PoolDevice]:
    """The seats that a job knows of once it was told of a change."""
    kept = {place: seat for place, seat in told.items() if place not in change.gone}
    return {**kept, **{place: offer.seats[place] for place in change.arriving}}
