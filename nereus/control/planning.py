"""Replans: what a boundary triggers, when the loop is held for the answer, and the verdict on each proposal.

boundary -> triggers -> replan: RequestPlan -> plan_ready: verdicts in order of L_step -> Admitted, or the plan is kept
"""

from __future__ import annotations

from dataclasses import replace

from nereus.control.effects import Effect, Publish, ReleaseBoundary, RequestPlan, Waited
from nereus.control.events import PlanReady, ReplanRequested
from nereus.control.judging import decision, judged, replanned, terms
from nereus.control.moving import let_go, scripted, stop
from nereus.control.phases import Admitted, Paused, Planning, Steady, Waiting
from nereus.control.restoring import begin_restore, leave_for, restart
from nereus.control.saving import begin_save, is_at_boundary, is_due, is_needed
from nereus.control.state import JobState, Result
from nereus.control.watching import crossings, reference_now, with_new_classes
from nereus.policy.admission import Code
from nereus.policy.horizon import Signal
from nereus.policy.triggers import Trigger

OPERATOR = Trigger(Signal.POOL, urgent=False, reason="an operator asked", crossed=False)
"""What triggers a replan that someone asked for: no signal has crossed."""

STALE = Trigger(Signal.POOL, urgent=False, reason="the pool or the units changed after the decision", crossed=False)
"""What triggers a replan whose predecessor was overtaken by events."""

PATIENCE = 0.02
"""Share of a step that the loop waits for a plan. An admitted transition saves a few percent of a step at least, and a step
earlier it does so once more; a wait that ends in a rejection is lost."""


def boundary(state: JobState, now_s: float) -> Result:
    """A step is complete: carry out what was admitted or scripted, else look for triggers and let the loop go on."""
    if state.pausing:
        return _held(replace(state, boundary_due=True))
    if is_due(state):
        return begin_save(state, "one is due", None, now_s)
    if state.step in state.config.script:
        return scripted(state, state.config.script[state.step], now_s)
    return look(state, now_s)


def look(state: JobState, now_s: float) -> Result:
    """The loop asks what to run next: carry out what was admitted, else look for triggers and let it go on."""
    if isinstance(state.phase, Admitted):
        return carry_out_admitted(state, state.phase, now_s)
    found = crossings(state) if state.config.policy.adapt else ()
    state = with_new_classes(state) if state.config.policy.adapt else state
    if isinstance(state.phase, Planning):
        if state.phase.is_urgent or not any(trigger.urgent for trigger in found):
            return _hold_or_go(state, state.phase)
    elif not found and state.request is None:
        return state, (ReleaseBoundary(release=state.release),)
    asked = None if found else state.request
    return _ask(replace(state, request=None if asked else state.request), found or (OPERATOR,), asked)


def _held(state: JobState) -> Result:
    """An operator holds the loop: what is planned or admitted waits with it."""
    if isinstance(state.phase, Planning):
        return replace(state, phase=replace(state.phase, holding=True)), ()
    return replace(state, phase=Paused(admitted=state.phase if isinstance(state.phase, Admitted) else None)), ()


def carry_out_admitted(state: JobState, admitted: Admitted, now_s: float) -> Result:
    """The loop waits: leave for the admitted plan, if pool and units are still as in its snapshot, else look again."""
    if admitted.epoch == state.plan.epoch and admitted.usable == state.usable:
        return leave_for(state, admitted, now_s)
    return _ask(replace(state, phase=Steady()), crossings(state) or (STALE,), None, recovering=admitted.recovering)


def _ask(
    state: JobState, found: tuple[Trigger, ...], request: ReplanRequested | None, *, recovering: bool = False
) -> Result:
    """Ask for a plan at a boundary, where the loop is let go or held."""
    after, effects = replan(state, found, request, recovering=recovering)
    assert isinstance(after.phase, Planning)
    after, go = _hold_or_go(after, after.phase)
    return after, (*effects, *go)


def _hold_or_go(state: JobState, planning: Planning) -> Result:
    """Let the loop go on while the planner works, unless the plan in force would not survive the next step, or the answer
    takes next to nothing of a step."""
    lost = any(state.leaving.get(device, state.step + 2) <= state.step + 1 for device in state.plan.devices)
    must_wait = planning.recovering or (planning.is_urgent and (lost or _memory_is_short(state)))
    if must_wait or _answers_soon(state):
        return replace(state, phase=replace(planning, holding=True, patient=not must_wait)), ()
    return replace(state, phase=planning), (ReleaseBoundary(release=state.release),)


def _answers_soon(state: JobState) -> bool:
    """Whether the planner's last answer took so little of a step that waiting costs less than a step on the old plan."""
    if state.report is None or state.answer_s is None:
        return False
    return state.answer_s <= PATIENCE * state.report.step_s


def _memory_is_short(state: JobState) -> bool:
    """Whether the next step, at its longest responses, is predicted not to fit."""
    snapshot = state.snapshot
    next_step = snapshot.pricing.lengths(state.mean_tokens, range(state.step + 1, state.step + 2))
    return replace(snapshot, lengths=next_step).peak_bytes() > snapshot.pricing.usable_bytes


def replan(
    state: JobState,
    found: tuple[Trigger, ...],
    request: ReplanRequested | None,
    *,
    holding: bool = False,
    recovering: bool = False,
    fresh: bool = False,
) -> Result:
    """Ask for proposals; references are reset now, whatever comes of it."""
    horizons = state.horizons
    if request is None:
        for trigger in found:
            if trigger.crossed:
                horizons = horizons.crossed(trigger.signal, state.step)
    cycle = state.cycle + 1
    planning = Planning(
        cycle=cycle,
        triggers=found,
        horizon_steps=_capped(state, horizons.steps(trigger.signal for trigger in found)),
        usable=state.usable,
        request=request,
        holding=holding,
        recovering=recovering,
        fresh=fresh,
    )
    after = replace(
        state,
        cycle=cycle,
        horizons=horizons,
        reference=state.reference if request and request.dry_run else reference_now(state),
        phase=planning,
    )
    return after, (request_for(after),)


def _capped(state: JobState, horizon_steps: float) -> float:
    """H_x, or what is left of the job: nothing pays after its last step."""
    total = state.config.num_steps
    return horizon_steps if total is None else min(horizon_steps, float(max(total - state.step, 0)))


def request_for(state: JobState) -> RequestPlan:
    """What the planner is asked for."""
    planning = state.phase
    assert isinstance(planning, Planning)
    # Pins are for what only pays: a plan that cannot go on has to be left.
    free = planning.is_urgent or planning.recovering
    pins = frozenset() if free else frozenset(state.config.policy.pins)
    snapshot = replace(state.snapshot, is_bound=not planning.recovering, pins=pins, terms=terms(state, planning))
    if state.saved is not None and (planning.fresh or state.is_bare):
        bare = dict.fromkeys(state.emus, ())
        snapshot = replace(snapshot, emus=bare, is_bound=False, restore_s=state.saved.seconds)
    return RequestPlan(cycle=planning.cycle, snapshot=snapshot, top=state.config.policy.top)


def plan_ready(state: JobState, event: PlanReady, now_s: float) -> Result:
    """Judge the proposals in order of L_step until one is admitted; every verdict is published."""
    planning = state.phase
    assert isinstance(planning, Planning)
    state = replace(state, answer_s=event.seconds)
    if planning.holding and planning.usable != state.usable:
        asked, effects = replan(state, planning.triggers, planning.request, holding=True, recovering=planning.recovering)
        assert isinstance(asked.phase, Planning)
        return replace(asked, phase=replace(asked.phase, patient=planning.patient)), effects
    news: list[Effect] = [Publish(news=replanned(state, planning, event))]
    for proposal in event.proposals:
        verdict, changed = judged(state, planning, proposal, event.current_l_step_s, now_s)
        news.append(Publish(news=decision(state, planning, proposal, changed, verdict)))
        if verdict.is_admitted and not (planning.request and planning.request.dry_run):
            admitted = Admitted(
                cycle=planning.cycle,
                reason="; ".join(trigger.reason for trigger in planning.triggers),
                usable=planning.usable,
                epoch=state.plan.epoch,
                changed=changed,
                l_tran_s=proposal.l_tran_s,
                urgent=planning.triggers if planning.is_urgent else (),
                saves_s=verdict.delta_l_s if verdict.code is Code.ADMITTED else None,
                recovering=planning.recovering,
            )
            if planning.fresh:
                after, effects = restart(state, planning.triggers, now_s, holding=True)
                return after, (*news, *effects)
            state, told = waited(state, now_s)
            news.extend(told)
            after = replace(state, phase=admitted)
            if planning.holding and state.pausing and not planning.is_urgent:
                return replace(state, phase=Paused(admitted=admitted)), tuple(news)
            if planning.holding:
                after, effects = leave_for(after, admitted, now_s)
                news.extend(effects)
            return after, tuple(news)
    after, effects = no_plan(state, "no plan fits what is left", now_s)
    return after, (*news, *effects)


def no_plan(state: JobState, why: str, now_s: float) -> Result:
    """Nothing was admitted: keep the plan in force. Where it cannot go on, save the state first."""
    planning = state.phase
    assert isinstance(planning, Planning)
    if planning.must_leave and not planning.fresh and is_needed(state, planning):
        return begin_save(state, f"{planning.triggers[0].reason}; {why}", planning, now_s, why)
    return unplanned(state, why, now_s)


def unplanned(state: JobState, why: str, now_s: float) -> Result:
    """No transition leads on: start anew if the state is saved and a plan fits, else wait, go on as it is, or stop."""
    planning = state.phase
    assert isinstance(planning, Planning)
    if planning.must_leave and planning.usable != state.usable:
        return replan(state, planning.triggers, None, holding=planning.holding, recovering=planning.recovering)
    saved = state.saved is not None and state.saved.step == state.step and is_at_boundary(state, planning)
    if planning.must_leave and saved and state.usable and not planning.fresh and not state.is_bare:
        return replan(state, planning.triggers, None, holding=True, recovering=planning.recovering, fresh=True)
    if planning.must_leave and state.may_grow:
        waiting = Waiting(triggers=planning.triggers, holding=planning.holding, recovering=planning.recovering)
        since_s = now_s if state.waiting_since_s is None else state.waiting_since_s
        return replace(state, phase=waiting, waiting_since_s=since_s), ()
    return _given_up(state, planning, why, now_s)


def wait(state: JobState, now_s: float) -> Result:
    """A device has come while the loop waits for a plan that fits: ask again; from a checkpoint, when all are there."""
    waiting = state.phase
    assert isinstance(waiting, Waiting)
    if state.is_bare and state.starting:
        return state, ()
    if state.is_bare and not state.config.policy.adapt and state.plan.devices <= set(state.usable):
        state, told = waited(state, now_s)
        after, effects = begin_restore(state, {}, waiting.triggers[0].reason, waiting.triggers, now_s)
        return after, (*told, *effects)
    return replan(state, waiting.triggers, None, holding=waiting.holding, recovering=waiting.recovering)


def give_up(state: JobState, why: str, now_s: float) -> Result:
    """What the loop waits for does not come, unless the pool brings something else."""
    waiting = state.phase
    assert isinstance(waiting, Waiting)
    return (state, ()) if state.may_grow else _given_up(state, waiting, why, now_s)


def _given_up(state: JobState, phase: Planning | Waiting, why: str, now_s: float) -> Result:
    """No plan fits, and none will: go on as it is, or stop where units are gone."""
    state, told = waited(state, now_s)
    if phase.recovering:
        after, effects = stop(state, f"{phase.triggers[0].reason}; {why}; run the job again with more devices or memory")
        return after, (*told, *effects)
    after, go = let_go(state) if phase.holding else (replace(state, phase=Steady()), ())
    return after, (*told, *go)


def waited(state: JobState, now_s: float) -> Result:
    """The wait for a plan that fits is over: how long it was."""
    if state.waiting_since_s is None:
        return state, ()
    told = Publish(news=Waited(step=state.step, seconds=now_s - state.waiting_since_s))
    return replace(state, waiting_since_s=None), (told,)
