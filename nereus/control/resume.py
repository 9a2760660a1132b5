"""What a restarted controller asks for again: the calls that may have been lost with it. All of them are idempotent."""

from __future__ import annotations

from nereus.control.carrying import Leg, again
from nereus.control.effects import AbortOps, BindUnits, Effect, InstallPrograms, SeedUnits, SpawnDevices, StopJob
from nereus.control.phases import Joining, Planning, Restoring, Saving, Settling, Starting, Stopped, Transitioning
from nereus.control.planning import request_for
from nereus.control.programs import programs
from nereus.control.restoring import restore_of
from nereus.control.saved import seal_of
from nereus.control.saving import save_of
from nereus.control.state import JobState


def pending(state: JobState) -> tuple[Effect, ...]:
    """The effects whose completions are still waited for. A wait at the boundary is asked for again by the loop itself."""
    arriving = (SpawnDevices(devices=tuple(sorted(state.starting))),) if state.starting else ()
    return (*arriving, *_of_phase(state))


def _of_phase(state: JobState) -> tuple[Effect, ...]:
    match state.phase:
        case Stopped():
            return (StopJob(reason=state.phase.reason),)
        case Starting():
            return _starting(state, state.phase)
        case Planning():
            return (request_for(state),)
        case Joining():
            return (SpawnDevices(devices=tuple(sorted(state.phase.devices))),)
        case Transitioning() if state.phase.carrying.leg is not Leg.DONE:
            return again(state.phase.carrying)
        case Saving() if state.phase.waiting:
            return (save_of(state, state.phase),)
        case Saving():
            return (seal_of(state, state.phase),)
        case Restoring():
            return (restore_of(state, state.phase),)
        case Settling():
            return (AbortOps(epoch=state.phase.moving.carrying.task.epoch, endpoints=tuple(sorted(state.phase.waiting))),)
    return ()


def _starting(state: JobState, phase: Starting) -> tuple[Effect, ...]:
    if phase.devices:
        return (SpawnDevices(devices=tuple(sorted(phase.devices))),)
    installed, keep = programs(state, ())
    if phase.installing:
        return (InstallPrograms(programs=installed),)
    if phase.seeding:
        return (SeedUnits(emus=state.bound),)
    return (BindUnits(epoch=0, emus=state.bound, endpoints=tuple(sorted(phase.binding)), keep=keep),)
