"""A transition on its way, and what becomes of one that fails, loses a device or is aborted before its commit.

    Transitioning --fault--> Settling: abort, quiet? -> which units are whole -> Transitioning: end streams, prove, bind
        -> all that was in force: rolled back    -> all of the target: carried through    -> else: a plan from what is intact

Until the first Destroy the units in force are whole, so a fault alone rolls back (paper, section 6.1: "a transition that
stops partway loses no logical state unless the last copy is lost, and Nereus replans from the intact units").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nereus.control.carrying import Leg, advance, awaits
from nereus.control.carrying import begin as begin_carrying
from nereus.control.effects import AbortOps, Interrupted, Publish
from nereus.control.events import EndpointDied, Event, OpFailed, PoolChanged, Settled, StepLost
from nereus.control.intact import Family, Standing, plan_of, standing
from nereus.control.moving import begin, committed, in_force, let_go, stop, task_of
from nereus.control.phases import End, Regroup, Settling, Transitioning
from nereus.control.planning import replan
from nereus.control.restoring import lost_in_restore, restart, restored
from nereus.control.state import JobState, Result
from nereus.emu.plan import Plan, StagePlan
from nereus.errors import LayoutError
from nereus.policy.horizon import Signal
from nereus.policy.proposal import transition_to
from nereus.policy.triggers import Trigger
from nereus.transition.ops import Op, Transition

MAX_REGROUPS = 4
"""Transitions that may end before their commit, one after the other: what fails so often is no accident, and trying on would
keep the loop waiting for ever."""


def transitioning(state: JobState, event: Event, now_s: float) -> Result:
    """One fact of a transition; at its end the new plan is in force and the loop goes on."""
    moving = state.phase
    assert isinstance(moving, Transitioning)
    epoch = moving.carrying.task.epoch
    if isinstance(event, OpFailed):
        if not awaits(moving.carrying, event.op, event.endpoint):
            return state, ()
        reason = f"transition to epoch {epoch}: {event.op} failed on {event.endpoint}: {event.error}"
        return interrupt(state, reason, now_s)
    carrying, effects = advance(moving.carrying, event, state.config.states, now_s)
    after = replace(state, phase=replace(moving, carrying=carrying))
    if carrying.fault:
        # Without a digest from before, nobody can tell which of two replicas is right.
        is_known = {unit.stage for unit in carrying.wrong} <= set(moving.carrying.proof)
        if moving.restoring is not None:
            return stop(after, f"the checkpoint is not what was saved: {carrying.fault}")
        return interrupt(after, carrying.fault, now_s) if is_known else stop(state, carrying.fault)
    if carrying.leg is not Leg.DONE:
        return after, effects
    if moving.restoring is not None:
        return restored(state, moving, carrying, now_s)
    if moving.regroup is None:
        return committed(state, moving, carrying)
    return _regrouped(in_force(state, moving, carrying), moving.regroup, now_s)


def interrupt(state: JobState, reason: str, now_s: float) -> Result:
    """End the transition: unblock whoever takes part in it, and wait until all of them are quiet."""
    moving = state.phase
    assert isinstance(moving, Transitioning)
    if moving.restoring is not None:
        return lost_in_restore(state, reason, now_s)
    task, live = moving.carrying.task, set(state.endpoint_of.values())
    waiting = frozenset(endpoint for endpoint in task.endpoints if endpoint in live)
    settling = Settling(moving=moving, reason=reason, waiting=waiting)
    if not waiting:
        return _settled(state, settling, now_s)
    return replace(state, phase=settling), (AbortOps(epoch=task.epoch, endpoints=tuple(sorted(waiting))),)


def settling(state: JobState, event: Event, now_s: float) -> Result:
    """One fact of the end of a transition; when all are quiet, whole units are bound again."""
    phase = state.phase
    assert isinstance(phase, Settling)
    live = set(state.endpoint_of.values())
    match event:
        case Settled(epoch=epoch, endpoint=who) if epoch == phase.moving.carrying.task.epoch and who in phase.waiting:
            phase = replace(phase, waiting=phase.waiting - {who}, done={**phase.done, who: frozenset(event.done)})
        case EndpointDied() | StepLost() | PoolChanged():
            phase = replace(phase, waiting=phase.waiting & live)
        case _:
            return state, ()
    after = replace(state, phase=phase)
    return (after, ()) if phase.waiting else _settled(after, phase, now_s)


def _settled(state: JobState, settling: Settling, now_s: float) -> Result:
    """All is quiet: go back to whole units, or stop where a model-stage has none."""
    carrying = settling.moving.carrying
    live, forward = frozenset(state.endpoint_of.values()), settling.moving.regroup is not None
    found = standing(carrying, live, settling.done, forward=forward)
    emus = {**state.emus, **found.emus}
    bare = [name for name, family in emus.items() if not family]
    if bare:
        lost = f"{settling.reason}; no intact copy of {', '.join(bare)} is left"
        return restart(state, (Trigger(Signal.POOL, True, lost),), now_s, holding=True)
    if state.num_regroups >= MAX_REGROUPS:
        why = f"{state.num_regroups + 1} transitions one after the other have ended so"
        return stop(state, f"{settling.reason}; {why}; look for what they have in common")
    return _regroup(state, settling, found, emus, now_s)


def _regroup(state: JobState, settling: Settling, found: Standing, emus: dict[str, Family], now_s: float) -> Result:
    """Finish the streams that some of these units wait for, prove the units, and bind them."""
    moving, epoch, plan = settling.moving, state.next_epoch, state.plan
    device_of = {endpoint: device for device, endpoint in state.endpoint_of.items()}
    target = {**plan.stages, **moving.changed}
    stages = {name: plan_of(family, (plan.stages[name], target[name]), device_of) for name, family in emus.items()}
    future = replace(state, plan=Plan(epoch, stages), emus=emus)
    result = tuple(emu for family in found.emus.values() for emu in family)
    ops = tuple(_renamed(op, epoch, place) for place, op in enumerate(found.unfinished))
    awaited = {emu.unit for op in ops for emu in op.makes}
    before = tuple(emu for emu in result if emu.unit not in awaited)
    carrying, effects = begin_carrying(task_of(future, Transition(ops, result), before), now_s, moving.carrying.proof)
    first = moving.regroup
    end = End.ROLLED_BACK if stages == plan.stages else End.CARRIED_THROUGH if stages == target else End.PARTED
    regroup = Regroup(
        epoch=first.epoch if first else moving.carrying.task.epoch,
        reason=first.reason if first else settling.reason,
        # What led back to whole units and had to be led back itself has led to where the first one did, or apart.
        end=end if first is None else first.end if stages == target else End.PARTED,
        target=first.target if first else target,
        triggers=first.triggers if first else moving.urgent,
    )
    changed = {name: stage for name, stage in stages.items() if stage != plan.stages[name]}
    phase = Transitioning(carrying=carrying, reason=settling.reason, changed=changed, l_tran_s=None, regroup=regroup)
    return replace(state, phase=phase, last_epoch=epoch, num_regroups=state.num_regroups + 1), effects


def _renamed(op: Op, epoch: int, place: int) -> Op:
    """A stream of an earlier epoch as one of this, which goes on where it was interrupted."""
    return replace(op, id=f"e{epoch}.{place}.{op.id.rpartition('.')[2]}", after=())


def _regrouped(state: JobState, regroup: Regroup, now_s: float) -> Result:
    """Whole units are in force: the loop goes on if a plan that was meant has them, and need not change at once."""
    told = Publish(
        news=Interrupted(step=state.step, epoch=regroup.epoch, reason=regroup.reason, end=str(regroup.end), plan=state.plan)
    )
    ahead = {name: plan for name, plan in regroup.target.items() if plan != state.plan.stages[name]}
    if regroup.end is End.PARTED and _leads_on(state, ahead):
        after, effects = begin(state, ahead, regroup.reason, None, now_s, regroup.triggers)
    elif regroup.end is End.PARTED:
        lost = (Trigger(Signal.POOL, True, regroup.reason),)
        after, effects = replan(state, regroup.triggers or lost, None, holding=True, recovering=True)
    elif regroup.end is End.ROLLED_BACK and regroup.triggers:
        after, effects = replan(state, regroup.triggers, None, holding=True)
    else:
        after, effects = let_go(state)
    return after, (told, *effects)


def _leads_on(state: JobState, ahead: Mapping[str, StagePlan]) -> bool:
    """Whether what stands can still be brought to the target: its devices are there, and the rest of the way fits."""
    if not {device for plan in ahead.values() for device in plan.devices} <= set(state.usable):
        return False
    try:
        return transition_to(state.snapshot, ahead, state.next_epoch)[1].violation is None
    except LayoutError:
        return False
