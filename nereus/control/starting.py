"""The start of a job: devices ready -> programs installed -> units seeded -> units bound -> the loop may run."""

from __future__ import annotations

from dataclasses import replace

from nereus.control.effects import (
    BindUnits,
    InstallPrograms,
    Publish,
    ReleaseBoundary,
    SeedUnits,
    Started,
)
from nereus.control.events import Committed, DeviceFailed, DeviceReady, EndpointDied, Event, Installed, OpFailed, Seeded
from nereus.control.moving import stop
from nereus.control.phases import Starting, Steady
from nereus.control.programs import programs, weight_sync
from nereus.control.state import JobState, Result
from nereus.control.watching import first_reference
from nereus.emu.plan import Plan
from nereus.emu.unit import phi


def starting(state: JobState, event: Event) -> Result:
    """One fact of the start."""
    phase = state.phase
    assert isinstance(phase, Starting)
    match event:
        case DeviceReady() if event.device in phase.devices:
            left = phase.devices - {event.device}
            if left:
                return replace(state, phase=replace(phase, devices=left)), ()
            return _install(state)
        case Installed() if event.endpoint in phase.installing:
            waiting = phase.installing - {event.endpoint}
            after = replace(state, phase=replace(phase, installing=waiting))
            return (after, ()) if waiting else _seed(after)
        case Seeded() if event.endpoint in phase.seeding:
            waiting = phase.seeding - {event.endpoint}
            after = replace(state, phase=replace(phase, seeding=waiting))
            return (after, ()) if waiting else _bind(after)
        case Committed() if event.endpoint in phase.binding:
            waiting = phase.binding - {event.endpoint}
            after = replace(state, phase=replace(phase, binding=waiting))
            return (after, ()) if waiting else _begun(after)
        case DeviceFailed():
            return stop(state, f"device {event.device} did not start: {event.reason}")
        case OpFailed() | EndpointDied():
            doing = event.op if isinstance(event, OpFailed) else event.during
            error = event.error if isinstance(event, OpFailed) else "it died"
            reason = f"endpoint {event.endpoint} did not start: {doing}: {error}"
            return stop(state, reason)
    return state, ()


def _install(state: JobState) -> Result:
    """All devices are ready: name the first units and have their communicators made."""
    stages = state.config.first
    placed = replace(
        state,
        plan=Plan(0, stages),
        emus={name: phi(stage, state.endpoint_of, 0) for name, stage in stages.items()},
        phase=Starting(devices=frozenset(), installing=frozenset(state.endpoint_of.values())),
    )
    installed, _ = programs(placed, ())
    return placed, (InstallPrograms(programs=installed),)


def _seed(state: JobState) -> Result:
    seeding = frozenset(endpoint for emu in state.bound for endpoint in emu.endpoints)
    return replace(state, phase=Starting(devices=frozenset(), seeding=seeding)), (SeedUnits(emus=state.bound),)


def _bind(state: JobState) -> Result:
    endpoints = tuple(endpoint for _, endpoint in sorted(state.endpoint_of.items()))
    _, keep = programs(state, ())
    bind = BindUnits(epoch=0, emus=state.bound, endpoints=endpoints, keep=keep)
    return replace(state, phase=Starting(devices=frozenset(), binding=frozenset(endpoints))), (bind,)


def _begun(state: JobState) -> Result:
    """All units are bound: the loop may run its first step."""
    after = replace(state, phase=Steady(), reference=first_reference(state), sync_members=weight_sync(state).members)
    return after, (Publish(news=Started(plan=after.plan)), ReleaseBoundary(release=after.release))
