"""What operators ask for beside a replan: hold the loop, let it go, end what is on its way, go back to the plan before.

    pause -> held at the next boundary -> resume     abort -> nothing planned or moving     rollback -> a forced transition

Each request is answered with one sentence, whether it can be done or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from nereus.control.effects import Answered, CanaryRead, Effect, Publish
from nereus.control.events import OperatorAsked, ReplanRequested, Verb
from nereus.control.intact import is_reversible
from nereus.control.judging import decision, judged
from nereus.control.moving import begin, let_go
from nereus.control.phases import Admitted, Joining, Paused, Phase, Planning, Steady, Transitioning
from nereus.control.planning import OPERATOR, boundary, carry_out_admitted
from nereus.control.regrouping import interrupt
from nereus.control.state import JobState, Result
from nereus.emu.plan import Plan, StagePlan
from nereus.policy.proposal import Proposal, proposal_of


def operate(state: JobState, event: OperatorAsked, now_s: float) -> Result:
    """Do what is asked, or say why not."""
    match event.verb:
        case Verb.PAUSE:
            return _pause(state, event)
        case Verb.RESUME:
            return _resume(state, event, now_s)
        case Verb.ABORT:
            return _abort(state, event, now_s)
        case Verb.ROLLBACK:
            return _roll_back(state, event, now_s)


def _answer(state: JobState, event: OperatorAsked, reason: str, *, done: bool) -> Effect:
    told = Answered(
        step=state.step, command=event.command, verb=str(event.verb), done=done, reason=reason, paused=state.pausing
    )
    return Publish(news=told)


def _refused(state: JobState, event: OperatorAsked, reason: str) -> Result:
    return state, (_answer(state, event, reason, done=False),)


def _pause(state: JobState, event: OperatorAsked) -> Result:
    if state.pausing:
        return _refused(state, event, "the job is paused already; `nereus resume` lets it go")
    after = replace(state, pausing=True)
    return after, (_answer(after, event, "the loop is held at its next boundary until `nereus resume`", done=True),)


def _resume(state: JobState, event: OperatorAsked, now_s: float) -> Result:
    if not state.pausing:
        return _refused(state, event, "the job is not paused")
    after = replace(state, pausing=False)
    told = _answer(after, event, "the loop goes on", done=True)
    if not isinstance(state.phase, Paused):
        return after, (told,)
    admitted = state.phase.admitted
    ready = replace(after, phase=admitted or Steady())
    if ready.boundary_due:
        after, effects = boundary(replace(ready, boundary_due=False), now_s)
    else:
        after, effects = carry_out_admitted(ready, admitted, now_s) if admitted else let_go(ready)
    return after, (told, *effects)


def _abort(state: JobState, event: OperatorAsked, now_s: float) -> Result:
    phase = state.phase
    if isinstance(phase, Transitioning):
        return _abort_transition(state, phase, event, now_s)
    if _is_recovering(phase):
        return _refused(state, event, "units are gone, and the plan in force cannot go on without a new one")
    if isinstance(phase, Planning | Admitted | Joining):
        waits = isinstance(phase, Joining) or (isinstance(phase, Planning) and phase.holding)
        after, go = let_go(state) if waits else (replace(state, phase=Steady()), ())
        return after, (_answer(after, event, "the plan in force is kept", done=True), *go)
    if isinstance(phase, Paused) and phase.admitted is not None:
        after = replace(state, phase=Paused())
        return after, (_answer(after, event, "the plan in force is kept", done=True),)
    return _refused(state, event, "nothing is planned or on the move")


def _abort_transition(state: JobState, moving: Transitioning, event: OperatorAsked, now_s: float) -> Result:
    epoch = moving.carrying.task.epoch
    if moving.regroup is not None:
        return _refused(state, event, "the transition has ended, and whole units are being bound")
    if moving.restoring is not None:
        return _refused(state, event, "the state comes from a checkpoint, and there is none to return to")
    if not is_reversible(moving.carrying):
        return _refused(state, event, f"a Destroy was started, so the transition to epoch {epoch} is carried to its plan")
    told = _answer(state, event, f"the transition to epoch {epoch} is rolled back", done=True)
    # The operator knows why it had to be: it is not planned again at once.
    after, effects = interrupt(replace(state, phase=replace(moving, urgent=())), "an operator aborted it", now_s)
    return after, (told, *effects)


def read_canary(before: JobState, state: JobState, now_s: float) -> Result:
    """A step more was run on a plan that is watched: at the end, what it saved, and the plan before if it saved nothing."""
    policy, canary, report = state.config.policy, before.canary, state.report
    if canary is None or report is None or canary.epoch != state.plan.epoch or not report.stage_s:
        return state, ()
    after_s = (*canary.after_s, report.step_s)
    if len(after_s) < policy.canary_steps:
        return replace(state, canary=replace(canary, after_s=after_s)), ()
    realised = canary.before_s - fmean(after_s)
    returns = policy.canary_return and realised <= 0
    told = Publish(
        news=CanaryRead(
            step=state.step, epoch=canary.epoch, predicted_s=canary.predicted_s, realised_s=realised, returns=returns
        )
    )
    done = replace(state, canary=None)
    if not returns:
        return done, (told,)
    after, effects = _roll_back(done, OperatorAsked(command=f"canary of epoch {canary.epoch}", verb=Verb.ROLLBACK), now_s)
    return after, (told, *effects)


def _roll_back(state: JobState, event: OperatorAsked, now_s: float) -> Result:
    """A forced transition to the stage plans before those in force, at the next boundary."""
    phase = state.phase
    if state.previous is None:
        return _refused(state, event, "there was no transition yet, so there is no plan to go back to")
    if _is_recovering(phase) or not isinstance(phase, Steady | Planning | Admitted | Paused):
        return _refused(state, event, f"not now: the job is {type(phase).__name__}; ask again when it is Steady")
    missing = sorted({d for plan in state.previous.values() for d in plan.devices} - set(state.usable))
    if missing:
        return _refused(state, event, f"the plan before uses devices {missing}, which are not there or leave")
    proposal = _proposal(state, state.previous)
    if proposal is None:
        return _refused(state, event, "the plan before is the plan in force")
    asking = Planning(
        cycle=state.cycle + 1,
        triggers=(OPERATOR,),
        horizon_steps=1.0,
        usable=state.usable,
        request=ReplanRequested(command=event.command, dry_run=False, forced=True),
    )
    verdict, changed = judged(state, asking, proposal, state.snapshot.l_step_s(), now_s)
    told = Publish(news=decision(state, asking, proposal, changed, verdict))
    if not verdict.is_admitted:
        return state, (told, _answer(state, event, f"it cannot be carried out: {verdict.reason}", done=False))
    admitted = Admitted(
        cycle=asking.cycle,
        reason="an operator went back to the plan before",
        usable=state.usable,
        epoch=state.plan.epoch,
        changed=changed,
        l_tran_s=proposal.l_tran_s,
    )
    after = replace(state, cycle=asking.cycle, phase=admitted)
    reason = "the plan before is in force again after the next boundary"
    answer = _answer(after, event, reason, done=True)
    waits = isinstance(phase, Planning) and phase.holding
    if waits and not state.pausing:
        after, effects = begin(after, changed, admitted.reason, admitted.l_tran_s, now_s)
        return after, (told, answer, *effects)
    if waits or isinstance(phase, Paused):
        after = replace(after, phase=Paused(admitted=admitted))
    return after, (told, answer)


def _proposal(state: JobState, stages: Mapping[str, StagePlan]) -> Proposal | None:
    """What going back would cost."""
    snapshot, plan = state.snapshot, Plan(state.plan.epoch, stages)
    peak = max(snapshot.pricing.peaks(plan, snapshot.lengths).values())
    return proposal_of(snapshot, stages, snapshot.pricing.step_seconds(plan, snapshot.lengths), peak)


def _is_recovering(phase: Phase) -> bool:
    return isinstance(phase, Planning | Admitted) and phase.recovering
