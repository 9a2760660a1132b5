"""Going on from a checkpoint: all workers end, new ones start on what the pool has, and units are read instead of moved.

restart -> Waiting, bare -> Planning -> begin_restore: RestoreState -> StateRead of all
    -> Transitioning without operations: install, digests equal those of the save?, bind -> restored: the loop goes back
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from nereus.control.carrying import Carrying
from nereus.control.carrying import begin as begin_carrying
from nereus.control.checkpoint import Followed, Restored
from nereus.control.effects import Effect, Publish, RestoreState, RetireEndpoints, SpawnDevices
from nereus.control.events import Event, JobStarted, OpFailed, StateRead
from nereus.control.moving import begin_admitted, in_force, let_go, stop, task_of
from nereus.control.phases import Admitted, Restoring, Transitioning, Waiting
from nereus.control.state import JobState, Result
from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.emu.unit import phi
from nereus.layout.catalog import EndpointId
from nereus.policy.horizon import Signal
from nereus.policy.triggers import Trigger
from nereus.transition.ops import Transition

MAX_RESTARTS = 4
"""Times that a job goes back to one checkpoint: what ends it so often before the next one is no accident."""


def restart(state: JobState, triggers: tuple[Trigger, ...], now_s: float, *, holding: bool) -> Result:
    """End all workers and begin new ones for a plan from the latest checkpoint; stop where there is none."""
    reason = triggers[0].reason
    if state.saved is None:
        return stop(state, f"{reason}; run the job again, and look for what ended the process")
    if state.num_restarts >= MAX_RESTARTS:
        often = f"the job has gone back to one checkpoint {MAX_RESTARTS} times; look for what they have in common"
        return stop(state, f"{reason}; {often}")
    effects: list[Effect] = []
    if state.endpoint_of:
        effects.append(RetireEndpoints(endpoints=tuple(sorted(state.endpoint_of.values()))))
    devices = tuple(sorted(state.broken.union(state.usable)))
    if devices:
        effects.append(SpawnDevices(devices=devices))
    after = replace(
        state,
        emus=dict.fromkeys(state.config.states, ()),
        endpoint_of={},
        starting=state.starting.union(devices),
        broken=frozenset(),
        sync_members=(),
        canary=None,
        num_restarts=state.num_restarts + 1,
        waiting_since_s=now_s if state.waiting_since_s is None else state.waiting_since_s,
        phase=Waiting(triggers=triggers, holding=holding, recovering=True),
    )
    if not after.may_grow:
        return stop(replace(after, waiting_since_s=None), f"{reason}; no device is left, and none will come")
    return after, tuple(effects)


def resumed(state: JobState, event: JobStarted) -> Result:
    """A job that goes on from the checkpoint of another run: its devices start, and no unit stands."""
    saved = event.checkpoint
    assert saved is not None
    trigger = Trigger(Signal.POOL, True, f"the run goes on from {saved.name}", crossed=False)
    after = replace(
        state,
        plan=Plan(0, state.config.first),
        emus=dict.fromkeys(state.config.states, ()),
        starting=frozenset(event.devices),
        saved=saved,
        step=saved.step,
        phase=Waiting(triggers=(trigger,), holding=True, recovering=True),
    )
    return after, (SpawnDevices(devices=event.devices),)


def leave_for(state: JobState, admitted: Admitted, now_s: float) -> Result:
    """Go to an admitted plan: from the units that stand, or from the checkpoint where none does."""
    if state.is_bare:
        return begin_restore(state, admitted.changed, admitted.reason, admitted.urgent, now_s)
    return begin_admitted(state, admitted, now_s)


def begin_restore(
    state: JobState, changed: Mapping[str, StagePlan], reason: str, urgent: tuple[Trigger, ...], now_s: float
) -> Result:
    """Have the endpoints of a plan read its units from the latest checkpoint."""
    assert state.saved is not None
    stages, epoch = {**state.plan.stages, **changed}, state.next_epoch
    emus = {name: phi(stage, state.endpoint_of, epoch) for name, stage in stages.items()}
    waiting = frozenset(endpoint for units in emus.values() for emu in units for endpoint in emu.endpoints)
    phase = Restoring(
        epoch=epoch, stages=stages, emus=emus, reason=reason, urgent=urgent, waiting=waiting, began_s=now_s, num_bytes=0
    )
    return replace(state, phase=phase, last_epoch=epoch), (restore_of(state, phase),)


def restore_of(state: JobState, restoring: Restoring) -> RestoreState:
    """What the endpoints are asked for until all have read."""
    assert state.saved is not None
    units = tuple(emu for emus in restoring.emus.values() for emu in emus)
    return RestoreState(epoch=restoring.epoch, folder=state.saved.folder, emus=units)


def restoring(state: JobState, event: Event, now_s: float) -> Result:
    """One fact of reading a checkpoint; when all have read, the units are proved and bound as after a transition."""
    phase = state.phase
    assert isinstance(phase, Restoring)
    assert state.saved is not None
    match event:
        case StateRead(epoch=phase.epoch, endpoint=who) if who in phase.waiting:
            phase = replace(phase, waiting=phase.waiting - {who}, num_bytes=phase.num_bytes + event.num_bytes)
        case OpFailed(endpoint=who, op=op) if op == f"restore e{phase.epoch}" and who in phase.waiting:
            return stop(state, f"{who} could not read the checkpoint {state.saved.folder}: {event.error}")
        case _:
            return state, ()
    if phase.waiting:
        return replace(state, phase=phase), ()
    future = replace(state, plan=Plan(phase.epoch, phase.stages), emus=phase.emus)
    task = task_of(future, Transition((), future.bound), ())
    carrying, effects = begin_carrying(task, now_s, state.saved.proof)
    moving = Transitioning(
        carrying=carrying, reason=phase.reason, changed=phase.stages, l_tran_s=None, urgent=phase.urgent, restoring=phase
    )
    return replace(state, phase=moving), effects


def lost_in_restore(state: JobState, reason: str, now_s: float) -> Result:
    """A process is gone while units are read or proved: begin again with new ones."""
    return restart(state, (Trigger(Signal.POOL, True, reason, crossed=False),), now_s, holding=True)


def is_involved(state: JobState, gone: Collection[EndpointId]) -> bool:
    """Whether endpoints that are gone were to read units of the checkpoint."""
    phase = state.phase
    assert isinstance(phase, Restoring)
    return any(set(emu.endpoints) & set(gone) for emus in phase.emus.values() for emu in emus)


def restored(state: JobState, moving: Transitioning, carrying: Carrying, now_s: float) -> Result:
    """The units of the checkpoint are in force: the loop goes back to its step."""
    saved, phase = state.saved, moving.restoring
    assert saved is not None
    assert phase is not None
    repeated = state.step - saved.step
    after = replace(
        with_pool_ahead(in_force(state, moving, carrying), repeated),
        step=saved.step,
        horizons=state.horizons.back(repeated),
        save_step=saved.step,
        followed=Followed(folder=saved.folder, epoch=phase.epoch),
        mid_step=False,
        boundary_due=False,
        previous=None,
        num_regroups=0,
    )
    told = Publish(
        news=Restored(
            step=saved.step,
            epoch=phase.epoch,
            folder=saved.folder,
            reason=phase.reason,
            repeated_steps=repeated,
            num_bytes=phase.num_bytes,
            seconds=now_s - phase.began_s,
            plan=after.plan,
        )
    )
    after, go = let_go(after)
    return after, (told, *go)


def with_pool_ahead(state: JobState, steps: int) -> JobState:
    """The pool has gone on by so many of its steps while the job's did not: notices run out that much sooner."""
    leaving: dict[DeviceId, int] = {device: step - steps for device, step in state.leaving.items()}
    return replace(state, pool_ahead=state.pool_ahead + steps, leaving=leaving)
