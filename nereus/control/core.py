"""The decision core: `step(state, event, now) -> (state, effects)`. It reads no clock, knows no process, and keeps nothing.

    boundary -> learn -> trigger? -> RequestPlan -> PlanReady -> verdicts -> Admitted -> boundary -> Transitioning -> Steady

First it mirrors what happened (mirror.py), then it decides (planning.py, moving.py, losing.py, saved.py, restoring.py). The
loop is released at once unless state has to move or to be saved.
"""

from __future__ import annotations

from dataclasses import replace

from nereus.control.allowed import ALLOWED
from nereus.control.checkpoint import Checkpoint
from nereus.control.effects import DevicesChanged, Publish, SpawnDevices
from nereus.control.events import (
    BoundaryReached,
    DeviceFailed,
    DeviceReady,
    EndpointDied,
    Event,
    JobStarted,
    OperatorAsked,
    OpFailed,
    PlanReady,
    PoolChanged,
    ReplanRequested,
    StepLost,
    StepStopped,
)
from nereus.control.losing import asked_again, failed, lost, pool
from nereus.control.mirror import mirror
from nereus.control.moving import joining
from nereus.control.operating import operate, read_canary
from nereus.control.phases import (
    Admitted,
    Idle,
    Joining,
    Paused,
    Phase,
    Planning,
    Restoring,
    Saving,
    Settling,
    Starting,
    Steady,
    Stopped,
    Transitioning,
    Waiting,
)
from nereus.control.planning import OPERATOR, boundary, look, no_plan, plan_ready, replan, wait
from nereus.control.regrouping import settling, transitioning
from nereus.control.restoring import restoring, resumed
from nereus.control.saved import saving
from nereus.control.starting import starting
from nereus.control.state import JobState, Result
from nereus.errors import NereusError


def step(state: JobState, event: Event, now_s: float) -> Result:
    """The state after an event, and what to do about it. A fact that belongs to nothing in progress changes nothing."""
    if isinstance(state.phase, Stopped):
        return state, ()
    if isinstance(event, BoundaryReached) and not is_new(state, event):
        return state, asked_again(state)
    mirrored = mirror(state, event)
    after, effects = (
        pool(state, mirrored, event, now_s) if isinstance(event, PoolChanged) else _decide(state, mirrored, event, now_s)
    )
    _check_change(state.phase, after.phase)
    if (after.endpoint_of, after.leaving) != (state.endpoint_of, state.leaving):
        changed = DevicesChanged(step=after.step, ready=dict(after.endpoint_of), leaving=dict(after.leaving))
        effects = (Publish(news=changed), *effects)
    if isinstance(event, JobStarted) and isinstance(state.phase, Idle):
        effects = (Publish(news=state.config.described), *effects)
    return after, effects


def is_new(state: JobState, event: BoundaryReached) -> bool:
    """Whether a boundary was not taken in yet; what a loop asks that has not gone back to a checkpoint is old as well."""
    return event.report.step > state.step and (state.followed is None or event.followed == state.followed.epoch)


def _check_change(before: Phase, after: Phase) -> None:
    if type(before) is not type(after) and type(after) not in ALLOWED[type(before)]:
        raise NereusError(f"phase {type(before).__name__} cannot become {type(after).__name__}")


def _decide(before: JobState, state: JobState, event: Event, now_s: float) -> Result:
    match event, state.phase:
        case JobStarted(checkpoint=Checkpoint()), Idle():
            return resumed(state, event)
        case JobStarted(), Idle():
            return (
                replace(state, phase=Starting(devices=frozenset(event.devices))),
                (SpawnDevices(devices=event.devices),),
            )
        case _, Starting():
            return starting(state, event)
        case JobStarted(), _:
            return state, asked_again(state)
        case DeviceFailed(), _:
            return failed(state, event, now_s)
        case EndpointDied() | StepLost(), _:
            return lost(before, state, event, now_s)
        case BoundaryReached(), Steady() | Planning() | Admitted():
            watched, told = read_canary(before, state, now_s)
            after, effects = boundary(watched, now_s)
            return after, (*told, *effects)
        case PlanReady(cycle=cycle), Planning(cycle=asked) if cycle == asked:
            return plan_ready(state, event, now_s)
        case OpFailed(op="propose"), Planning():
            return no_plan(state, f"the planner failed: {event.error}", now_s)
        case StepStopped(), Steady() | Planning() | Admitted():
            return look(state, now_s)
        case BoundaryReached() | StepStopped(), Waiting():
            return replace(state, phase=replace(state.phase, holding=True)), ()
        case DeviceReady(), Waiting():
            return wait(state, now_s)
        case ReplanRequested(), Steady():
            return replan(state, (OPERATOR,), event)
        case ReplanRequested(), Paused(admitted=None):
            return replan(state, (OPERATOR,), event, holding=True)
        case OperatorAsked(), _:
            return operate(state, event, now_s)
        case ReplanRequested(), _:
            return replace(state, request=event), ()
        case DeviceReady(), Joining():
            return joining(state, event, now_s)
        case _, Saving():
            return saving(state, event, now_s)
        case _, Restoring():
            return restoring(state, event, now_s)
        case _, Transitioning():
            return transitioning(state, event, now_s)
        case _, Settling():
            return settling(state, event, now_s)
    return state, ()
