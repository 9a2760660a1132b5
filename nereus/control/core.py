"""The decision core: `step(state, event, now) -> (state, effects)`. It reads no clock, knows no process, and keeps nothing.

    boundary -> learn -> trigger? -> RequestPlan -> PlanReady -> verdicts -> Admitted -> boundary -> Transitioning -> Steady

First it mirrors what happened, then it decides. The loop is released at once unless state has to move.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict, replace

from nereus.control.carrying import Carrying, Leg, Task, advance, begin
from nereus.control.effects import (
    Decision,
    DevicesChanged,
    Effect,
    Publish,
    ReleaseBoundary,
    RequestPlan,
    RetireEndpoints,
    SpawnDevices,
    StopJob,
    TransitionRecord,
)
from nereus.control.events import (
    BoundaryReached,
    DeviceReady,
    EndpointDied,
    Event,
    JobStarted,
    OpFailed,
    PlanReady,
    PoolChanged,
    ReplanRequested,
    StepLost,
)
from nereus.control.phases import (
    ALLOWED,
    Admitted,
    Idle,
    Joining,
    Phase,
    Planning,
    Starting,
    Steady,
    Stopped,
    Transitioning,
)
from nereus.control.programs import programs
from nereus.control.script import targets
from nereus.control.starting import starting
from nereus.control.state import JobState
from nereus.cost.rates import Measurement, Rates
from nereus.cost.work import stage_work
from nereus.emu.plan import Plan, StagePlan
from nereus.emu.unit import Emu
from nereus.errors import DigestMismatch, NereusError
from nereus.layout.catalog import EndpointId
from nereus.policy.admission import Verdict, admit
from nereus.policy.horizon import Signal
from nereus.policy.proposal import Proposal, transition_to
from nereus.policy.triggers import Observed, Reference, Trigger, triggers
from nereus.spec.plan import ScriptedTransition

Result = tuple[JobState, tuple[Effect, ...]]

OPERATOR = Trigger(Signal.POOL, urgent=False, reason="an operator asked", crossed=False)
"""What triggers a replan that someone asked for: no signal has crossed."""


def step(state: JobState, event: Event, now_s: float) -> Result:
    """The state after an event, and what to do about it. A fact that belongs to nothing in progress changes nothing."""
    if isinstance(state.phase, Stopped):
        return state, ()
    if isinstance(event, BoundaryReached) and event.report.step <= state.step:
        return state, _asked_again(state)
    mirrored = _mirror(state, event)
    after, effects = (
        _pool(state, mirrored, event) if isinstance(event, PoolChanged) else _decide(state, mirrored, event, now_s)
    )
    _check_change(state.phase, after.phase)
    if (after.endpoint_of, after.leaving) != (state.endpoint_of, state.leaving):
        changed = DevicesChanged(step=after.step, ready=dict(after.endpoint_of), leaving=dict(after.leaving))
        effects = (Publish(news=changed), *effects)
    return after, effects


def _check_change(before: Phase, after: Phase) -> None:
    if type(before) is not type(after) and type(after) not in ALLOWED[type(before)]:
        raise NereusError(f"phase {type(before).__name__} cannot become {type(after).__name__}")


# --- mirror what happened ---------------------------------------------------------------------------------------------


def _mirror(state: JobState, event: Event) -> JobState:
    """Take in what is true now, deciding nothing."""
    match event:
        case DeviceReady():
            return replace(
                state,
                endpoint_of={**state.endpoint_of, event.device: event.endpoint},
                starting=state.starting - {event.device},
                flops={**state.flops, event.device: event.peak_flops},
            )
        case PoolChanged():
            return replace(
                state,
                endpoint_of={d: e for d, e in state.endpoint_of.items() if d not in event.gone},
                starting=(state.starting | set(event.arriving)).difference(event.gone, state.endpoint_of),
                leaving={d: s for d, s in {**state.leaving, **event.leaving}.items() if d not in event.gone},
                emus=_intact(state, {state.endpoint_of[d] for d in event.gone if d in state.endpoint_of}),
            )
        case EndpointDied() | StepLost():
            gone = {device for device, endpoint in state.endpoint_of.items() if endpoint == event.endpoint}
            return replace(
                state,
                endpoint_of={d: e for d, e in state.endpoint_of.items() if d not in gone},
                leaving={d: s for d, s in state.leaving.items() if d not in gone},
                emus=_intact(state, {event.endpoint}),
            )
        case BoundaryReached():
            return _learn(replace(state, step=event.report.step, report=event.report))
    return state


def _intact(state: JobState, dead: Set[EndpointId]) -> dict[str, tuple[Emu, ...]]:
    """The EMUs of each model-stage without those that lost a rank."""
    return {name: tuple(emu for emu in emus if not dead & set(emu.endpoints)) for name, emus in state.emus.items()}


def _learn(state: JobState) -> JobState:
    """Calibrate the cost model on the stage times of the last step (paper, section 4.2)."""
    report, job = state.report, state.config.job
    assert report is not None
    batch = state.batch(report.response_tokens_mean)
    measured = tuple(
        Measurement(stage_work(stage, job.model, job.dtype, batch), (stage.layout.tp, stage.dp), report.stage_s[name])
        for name, stage in state.plan.stages.items()
        if report.stage_s.get(name, 0.0) > 0
    )
    rates = state.rates if state.rates is not None else Rates(state.device_flops)
    return replace(state, rates=rates.learn(measured))


# --- decide -----------------------------------------------------------------------------------------------------------


def _decide(before: JobState, state: JobState, event: Event, now_s: float) -> Result:
    match event, state.phase:
        case JobStarted(), Idle():
            return (
                replace(state, phase=Starting(devices=frozenset(event.devices))),
                (SpawnDevices(devices=event.devices),),
            )
        case _, Starting():
            return starting(state, event)
        case JobStarted(), _:
            return state, _asked_again(state)
        case EndpointDied() | StepLost(), _:
            return _lost(before, state, event)
        case BoundaryReached(), Steady() | Planning() | Admitted():
            return _boundary(state, now_s)
        case PlanReady(cycle=cycle), Planning(cycle=asked) if cycle == asked:
            return _plan_ready(state, event, now_s)
        case ReplanRequested(), Steady():
            return _replan(state, (OPERATOR,), event)
        case ReplanRequested(), _:
            return replace(state, request=event), ()
        case DeviceReady(), Joining():
            return _joining(state, event, now_s)
        case _, Transitioning():
            return _transitioning(state, event, now_s)
    return state, ()


def _boundary(state: JobState, now_s: float) -> Result:
    """A step is complete: carry out what was admitted or scripted, else look for triggers and let the loop go on."""
    script = {entry.step: entry for entry in state.config.job.transitions}
    if state.step in script:
        return _scripted(state, script[state.step], now_s)
    if isinstance(state.phase, Admitted):
        admitted = state.phase
        if admitted.epoch == state.plan.epoch and admitted.usable == state.usable:
            return _begin(state, admitted.changed, admitted.reason, admitted.l_tran_s, now_s)
        state = replace(state, phase=Steady())
    if isinstance(state.phase, Planning):
        return _hold_or_go(state, state.phase)
    found = _triggers(state) if state.config.job.policy.adapt else ()
    if not found and state.request is None:
        return state, (ReleaseBoundary(release=state.release),)
    asked = None if found else state.request
    planning, request = _replan(replace(state, request=None if asked else state.request), found or (OPERATOR,), asked)
    assert isinstance(planning.phase, Planning)
    after, go = _hold_or_go(planning, planning.phase)
    return after, (*request, *go)


def _hold_or_go(state: JobState, planning: Planning) -> Result:
    """Let the loop go on while the planner works, unless the plan in force would not survive the next step."""
    lost = any(state.leaving.get(device, state.step + 2) <= state.step + 1 for device in state.plan.devices)
    if planning.is_urgent and (lost or _memory_is_short(state)):
        return replace(state, phase=replace(planning, holding=True)), ()
    return state, (ReleaseBoundary(release=state.release),)


def _memory_is_short(state: JobState) -> bool:
    """Whether the next step, at its longest responses, is predicted not to fit."""
    snapshot = state.snapshot
    longest = state.batch(state.config.job.workload.cap_at(state.step + 1))
    return replace(snapshot, longest=longest).peak_bytes() > snapshot.usable_bytes


def _triggers(state: JobState) -> tuple[Trigger, ...]:
    report = state.report
    assert report is not None
    if state.reference is None:
        return ()
    snapshot = state.snapshot
    # Devices that arrived together become ready one by one: the pool counts as changed when the last one is.
    growing = bool(state.starting) and set(state.usable) >= state.reference.pool
    observed = Observed(
        response_tokens=report.response_tokens_mean,
        pool=state.reference.pool if growing else frozenset(state.usable),
        used=state.plan.devices,
        predicted_bytes=snapshot.peak_bytes(),
        usable_bytes=snapshot.usable_bytes,
    )
    return triggers(observed, state.reference, state.config.job.policy.delta_length)


def _replan(state: JobState, found: tuple[Trigger, ...], request: ReplanRequested | None) -> Result:
    """Ask for proposals; references are reset now, whatever comes of it."""
    horizons = state.horizons
    if request is None:
        for trigger in found:
            if trigger.crossed:
                horizons = horizons.crossed(trigger.signal, state.step)
    mean = state.report.response_tokens_mean if state.report else 0.0
    cycle = state.cycle + 1
    planning = Planning(
        cycle=cycle,
        triggers=found,
        horizon_steps=horizons.steps(trigger.signal for trigger in found),
        usable=state.usable,
        request=request,
    )
    after = replace(
        state,
        cycle=cycle,
        horizons=horizons,
        reference=state.reference if request and request.dry_run else Reference(mean, frozenset(state.usable)),
        phase=planning,
    )
    return after, (RequestPlan(cycle=cycle, snapshot=state.snapshot, top=state.config.job.policy.top),)


def _plan_ready(state: JobState, event: PlanReady, now_s: float) -> Result:
    """Judge the proposals in order of L_step until one is admitted; every verdict is published."""
    planning = state.phase
    assert isinstance(planning, Planning)
    news: list[Effect] = []
    for proposal in event.proposals:
        verdict = _verdict(state, planning, proposal, event.current_l_step_s)
        changed = {name: plan for name, plan in proposal.stages.items() if plan != state.plan.stages.get(name)}
        news.append(Publish(news=_decision(state, planning, proposal, changed, verdict)))
        if verdict.is_admitted and not (planning.request and planning.request.dry_run):
            admitted = Admitted(
                cycle=planning.cycle,
                reason="; ".join(trigger.reason for trigger in planning.triggers),
                usable=planning.usable,
                epoch=state.plan.epoch,
                changed=changed,
                l_tran_s=proposal.l_tran_s,
            )
            after = replace(state, phase=admitted)
            if planning.holding:
                after, effects = _begin(after, changed, admitted.reason, admitted.l_tran_s, now_s)
                news.extend(effects)
            return after, tuple(news)
    if planning.recovering:
        stopped, stop = _stop(state, f"{planning.triggers[0].reason}; no plan fits what is left")
        return stopped, (*news, *stop)
    go = (ReleaseBoundary(release=state.release),) if planning.holding else ()
    return replace(state, phase=Steady()), (*news, *go)


def _verdict(state: JobState, planning: Planning, proposal: Proposal, current_s: float) -> Verdict:
    gamma = state.config.job.policy.gamma
    if proposal.infeasible is not None:
        code, reason = proposal.infeasible
        delta = current_s - proposal.l_step_s
        return Verdict(code, delta, proposal.l_tran_s, planning.horizon_steps, gamma, reason)
    return admit(
        current_s,
        proposal.l_step_s,
        proposal.l_tran_s,
        planning.horizon_steps,
        urgent=planning.is_urgent,
        forced=planning.request is not None and planning.request.forced,
        gamma=gamma,
    )


def _decision(
    state: JobState, planning: Planning, proposal: Proposal, changed: Mapping[str, StagePlan], verdict: Verdict
) -> Decision:
    return Decision(
        step=state.step,
        cycle=planning.cycle,
        triggers=tuple(trigger.reason for trigger in planning.triggers),
        target={name: str(plan) for name, plan in changed.items()},
        verdict=verdict,
        proposal=proposal,
        command=planning.request.command if planning.request else None,
    )


# --- transitions ------------------------------------------------------------------------------------------------------


def _scripted(state: JobState, entry: ScriptedTransition, now_s: float) -> Result:
    """A transition of the job file: its devices start first, then it is carried out whatever it costs."""
    if entry.join:
        joining = Joining(devices=frozenset(entry.join), joined=entry.join)
        return replace(state, phase=joining), (SpawnDevices(devices=entry.join),)
    return _begin_script(state, entry, (), now_s)


def _joining(state: JobState, event: DeviceReady, now_s: float) -> Result:
    joining = state.phase
    assert isinstance(joining, Joining)
    left = joining.devices - {event.device}
    if left:
        return replace(state, phase=replace(joining, devices=left)), ()
    entry = next(entry for entry in state.config.job.transitions if entry.step == state.step)
    return _begin_script(state, entry, joining.joined, now_s)


def _begin_script(state: JobState, entry: ScriptedTransition, joined: tuple[int, ...], now_s: float) -> Result:
    after, effects = _begin(state, targets(state, entry), "the job file says so", None, now_s)
    assert isinstance(after.phase, Transitioning)
    return replace(after, phase=replace(after.phase, joined=joined, leaving=entry.leave)), effects


def _begin(state: JobState, changed: Mapping[str, StagePlan], reason: str, l_tran_s: float | None, now_s: float) -> Result:
    """Leave for new stage plans; the loop waits until the commit."""
    epoch = state.plan.epoch + 1
    transition = transition_to(state.snapshot, changed, epoch)
    made = {name: tuple(emu for emu in transition.result if emu.stage == name) for name in changed}
    future = replace(state, plan=Plan(epoch, {**state.plan.stages, **changed}), emus={**state.emus, **made})
    installed, keep = programs(future, (*transition.moving, *transition.held))
    task = Task(
        epoch=epoch,
        transition=transition,
        programs=installed,
        before=tuple(emu for name in changed for emu in state.emus[name]),
        bound=future.bound,
        keep=keep,
    )
    carrying, effects = begin(task, now_s)
    phase = Transitioning(carrying=carrying, reason=reason, changed=dict(changed), l_tran_s=l_tran_s)
    return replace(state, phase=phase), effects


def _transitioning(state: JobState, event: Event, now_s: float) -> Result:
    """One fact of a transition; at its end the new plan is in force and the loop goes on."""
    moving = state.phase
    assert isinstance(moving, Transitioning)
    if isinstance(event, OpFailed):
        epoch = moving.carrying.task.epoch
        return _stop(state, f"transition to epoch {epoch}: {event.op} failed on {event.endpoint}: {event.error}")
    try:
        carrying, effects = advance(moving.carrying, event, state.config.states, now_s)
    except DigestMismatch as error:
        return _stop(state, str(error))
    if carrying.leg is not Leg.DONE:
        return replace(state, phase=replace(moving, carrying=carrying)), effects
    return _committed(state, moving, carrying)


def _committed(state: JobState, moving: Transitioning, carrying: Carrying) -> Result:
    task = carrying.task
    plan = Plan(task.epoch, {**state.plan.stages, **moving.changed})
    idle = [d for d in state.leaving if d in state.endpoint_of and d not in plan.devices]
    left = tuple(sorted({*idle, *moving.leaving}))
    seconds = carrying.seconds(Leg.INSTALL, Leg.DIGEST_AFTER) + carrying.seconds(Leg.HELD, Leg.DONE)
    links = state.links if moving.l_tran_s is None else state.links.corrected(moving.l_tran_s, seconds)
    after = replace(
        state,
        phase=Steady(),
        plan=plan,
        emus={name: tuple(emu for emu in task.bound if emu.stage == name) for name in state.emus},
        endpoint_of={d: e for d, e in state.endpoint_of.items() if d not in left},
        leaving={d: s for d, s in state.leaving.items() if d not in left},
        links=links,
    )
    record = TransitionRecord(
        step=state.step,
        epoch=task.epoch,
        trigger=moving.reason,
        primitives=task.transition.counts,
        joined=moving.joined,
        left=left,
        plan=plan,
        outcome={
            **asdict(carrying.tally),
            "seconds": seconds,
            "digest_s": carrying.seconds(Leg.DIGEST_BEFORE, Leg.INSTALL) + carrying.seconds(Leg.DIGEST_AFTER, Leg.HELD),
            "l_tran_predicted_s": moving.l_tran_s,
            "digest_equal": True,
        },
    )
    retire = (RetireEndpoints(endpoints=tuple(state.endpoint_of[d] for d in left)),) if left else ()
    return after, (Publish(news=record), *retire, ReleaseBoundary(release=after.release))


def _asked_again(state: JobState) -> tuple[Effect, ...]:
    """The loop asks a second time, after a restart: it is released unless state is on the move, which ends in a release."""
    held = isinstance(state.phase, Planning) and state.phase.holding
    waits = held or isinstance(state.phase, Starting | Joining | Transitioning)
    return () if waits else (ReleaseBoundary(release=state.release),)


def _pool(before: JobState, state: JobState, event: PoolChanged) -> Result:
    """Start what arrives, end what is gone; whether the plan has to change is the next boundary's question."""
    gone = tuple(before.endpoint_of[device] for device in event.gone if device in before.endpoint_of)
    effects: list[Effect] = []
    if event.arriving:
        effects.append(SpawnDevices(devices=event.arriving))
    if gone:
        effects.append(RetireEndpoints(endpoints=gone))
    hit = _units_on(before, gone)
    if hit or (gone and isinstance(state.phase, Transitioning)):
        after, more = _recover(state, f"the notice of {', '.join(gone)} ran out", hit, holding=False)
        return after, (*effects, *more)
    return state, tuple(effects)


def _lost(before: JobState, state: JobState, event: EndpointDied | StepLost) -> Result:
    """A process died, maybe with units on it: go on from the intact ones, or stop with the reason."""
    hit = _units_on(before, (event.endpoint,))
    waits = isinstance(event, StepLost)
    if hit or isinstance(state.phase, Transitioning):
        reason = f"endpoint {event.endpoint} died during {event.during}, with {', '.join(hit) or 'no unit'}"
        return _recover(state, reason, hit, holding=waits)
    if not waits:
        return state, ()
    if isinstance(state.phase, Planning):
        return replace(state, phase=replace(state.phase, holding=True)), ()
    return state, _asked_again(state)


def _units_on(state: JobState, endpoints: tuple[EndpointId, ...]) -> list[str]:
    return sorted(str(emu.unit) for emu in state.bound if set(endpoints) & set(emu.endpoints))


def _recover(state: JobState, reason: str, hit: list[str], *, holding: bool) -> Result:
    """Units are gone: ask for a plan from the intact ones at once. Without an intact copy, or half-way, the job stops."""
    bare = [name for name, emus in state.emus.items() if not emus]
    if bare or isinstance(state.phase, Transitioning) or not isinstance(state.phase, Steady | Planning | Admitted):
        why = f"no intact copy of {', '.join(bare)} is left" if bare else "state was moving"
        return _stop(state, f"{reason}; {why}; run the job again, and look for what ended the process")
    after, effects = _replan(state, (Trigger(Signal.POOL, True, reason),), None)
    assert isinstance(after.phase, Planning)
    return replace(after, phase=replace(after.phase, holding=holding, recovering=True)), effects


def _stop(state: JobState, reason: str) -> Result:
    return replace(state, phase=Stopped(reason=reason)), (StopJob(reason=reason),)
