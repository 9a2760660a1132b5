"""Transitions: how one begins, and what holds after its commit.

scripted [-> joining] -> begin -> facts, one by one (regrouping.py) -> committed: the new plan is in force, the loop goes on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import fmean

from nereus.control.carrying import Carrying, Leg, Task
from nereus.control.carrying import begin as begin_carrying
from nereus.control.effects import Publish, ReleaseBoundary, RetireEndpoints, SpawnDevices, StopJob, TransitionRecord
from nereus.control.events import DeviceReady
from nereus.control.phases import Admitted, Joining, Paused, Steady, Stopped, Transitioning
from nereus.control.programs import programs, weight_sync
from nereus.control.script import targets
from nereus.control.state import Canary, JobState, Result
from nereus.emu.plan import Plan, StagePlan
from nereus.emu.unit import Emu
from nereus.errors import LayoutError
from nereus.policy.proposal import transition_to
from nereus.policy.triggers import Trigger
from nereus.spec.plan import ScriptedTransition
from nereus.transition.estimate import LinkRates, Outcome, setup_seconds
from nereus.transition.ops import Transition
from nereus.transition.traffic import new_groups

HOUR_S = 3600.0
"""Seconds over which transitions are counted against the policy's limit."""


def scripted(state: JobState, entry: ScriptedTransition, now_s: float) -> Result:
    """A transition of the job file: its devices start first, then it is carried out whatever it costs."""
    if entry.join:
        joining = Joining(devices=frozenset(entry.join), joined=entry.join)
        return replace(state, phase=joining), (SpawnDevices(devices=entry.join),)
    return _begin_script(state, entry, (), now_s)


def joining(state: JobState, event: DeviceReady, now_s: float) -> Result:
    joining = state.phase
    assert isinstance(joining, Joining)
    left = joining.devices - {event.device}
    if left:
        return replace(state, phase=replace(joining, devices=left)), ()
    return _begin_script(state, state.config.script[state.step], joining.joined, now_s)


def _begin_script(state: JobState, entry: ScriptedTransition, joined: tuple[int, ...], now_s: float) -> Result:
    after, effects = begin(state, targets(state, entry), "the job file says so", None, now_s)
    if not isinstance(after.phase, Transitioning):
        return after, effects
    return replace(after, phase=replace(after.phase, joined=joined, leaving=entry.leave)), effects


def begin(
    state: JobState,
    changed: Mapping[str, StagePlan],
    reason: str,
    l_tran_s: float | None,
    now_s: float,
    urgent: tuple[Trigger, ...] = (),
) -> Result:
    """Leave for new stage plans; the loop waits until the commit."""
    epoch = state.next_epoch
    try:
        transition, _ = transition_to(state.snapshot, changed, epoch)
    except LayoutError as error:
        return stop(state, f"no order of primitives leads to the next plan: {error}")
    made = {name: tuple(emu for emu in transition.result if emu.stage == name) for name in changed}
    future = replace(state, plan=Plan(epoch, {**state.plan.stages, **changed}), emus={**state.emus, **made})
    before = tuple(emu for name in changed for emu in state.emus[name])
    carrying, effects = begin_carrying(task_of(future, transition, before), now_s)
    phase = Transitioning(carrying=carrying, reason=reason, changed=dict(changed), l_tran_s=l_tran_s, urgent=urgent)
    return replace(state, phase=phase, last_epoch=epoch), effects


def begin_admitted(state: JobState, admitted: Admitted, now_s: float) -> Result:
    """Leave for a plan that was admitted."""
    after, effects = begin(state, admitted.changed, admitted.reason, admitted.l_tran_s, now_s, admitted.urgent)
    if isinstance(after.phase, Transitioning):
        after = replace(after, phase=replace(after.phase, saves_s=admitted.saves_s))
    return after, effects


def task_of(future: JobState, transition: Transition, before: tuple[Emu, ...]) -> Task:
    """What it takes to carry a transition out that leads to the plan and the units of `future`."""
    installed, keep = programs(future, (*transition.moving, *transition.held))
    return Task(
        epoch=future.plan.epoch,
        transition=transition,
        programs=installed,
        before=before,
        bound=future.bound,
        keep=keep,
    )


def in_force(state: JobState, moving: Transitioning, carrying: Carrying) -> JobState:
    """The state once the plan and the units of a transition are bound."""
    task = carrying.task
    plan = Plan(task.epoch, {**state.plan.stages, **moving.changed})
    emus = {name: tuple(emu for emu in task.bound if emu.stage == name) for name in state.emus}
    after = replace(state, phase=Steady(), plan=plan, emus=emus)
    return replace(after, sync_members=weight_sync(after).members)


def committed(state: JobState, moving: Transitioning, carrying: Carrying) -> Result:
    """The new plan is in force, and the loop goes on."""
    task, after = carrying.task, in_force(state, moving, carrying)
    idle = [d for d in state.leaving if d in state.endpoint_of and d not in after.plan.devices]
    left = tuple(sorted({*idle, *moving.leaving}))
    seconds = carrying.seconds(Leg.INSTALL, Leg.DIGEST_AFTER) + carrying.seconds(Leg.HELD, Leg.DONE)
    after = replace(
        after,
        endpoint_of={d: e for d, e in state.endpoint_of.items() if d not in left},
        leaving={d: s for d, s in state.leaving.items() if d not in left},
        links=state.links if moving.l_tran_s is None else _corrected(state.links, carrying, moving.l_tran_s),
        num_regroups=0,
        previous=state.plan.stages,
        committed_s=_within_the_hour((*state.committed_s, carrying.began_s[-1])),
        canary=_canary(state, moving, task.epoch),
    )
    record = TransitionRecord(
        step=state.step,
        epoch=task.epoch,
        trigger=moving.reason,
        primitives=task.transition.counts,
        joined=moving.joined,
        left=left,
        plan=after.plan,
        outcome={
            **asdict(carrying.tally),
            "seconds": seconds,
            "digest_s": carrying.seconds(Leg.DIGEST_BEFORE, Leg.INSTALL) + carrying.seconds(Leg.DIGEST_AFTER, Leg.HELD),
            "l_tran_predicted_s": moving.l_tran_s,
            "streams": sum(op.stream is not None for op in task.transition.ops),
            "digest_equal": True,
        },
    )
    retire = (RetireEndpoints(endpoints=tuple(state.endpoint_of[d] for d in left)),) if left else ()
    after, go = let_go(after)
    return after, (Publish(news=record), *retire, *go)


def _corrected(links: LinkRates, carrying: Carrying, l_tran_s: float) -> LinkRates:
    """The rates after a transition: what its communicators took, and what the rest did."""
    setup_s = setup_seconds(new_groups(carrying.task.transition), links)
    moved_s = carrying.seconds(Leg.MOVE, Leg.DIGEST_AFTER) + carrying.seconds(Leg.HELD, Leg.DONE)
    setup = Outcome(setup_s, carrying.seconds(Leg.INSTALL, Leg.MOVE))
    return links.corrected(setup, Outcome(l_tran_s - setup_s, moved_s))


def _within_the_hour(times_s: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(at_s for at_s in times_s if times_s[-1] - at_s < HOUR_S)


def _canary(state: JobState, moving: Transitioning, epoch: int) -> Canary | None:
    """What is watched from now on: a transition that has to pay, if there are steps to compare with."""
    steps = state.config.policy.canary_steps
    if moving.saves_s is None or not steps or not state.recent_s:
        return None
    return Canary(epoch=epoch, predicted_s=moving.saves_s, before_s=fmean(state.recent_s[-steps:]))


def let_go(state: JobState) -> Result:
    """Let the loop go on from where it waits, unless an operator holds it."""
    if state.pausing:
        return replace(state, phase=Paused()), ()
    return replace(state, phase=Steady()), (ReleaseBoundary(release=state.release),)


def stop(state: JobState, reason: str) -> Result:
    """The job cannot go on."""
    return replace(state, phase=Stopped(reason=reason)), (StopJob(reason=reason),)
