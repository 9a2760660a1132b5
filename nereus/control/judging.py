"""Proposals before the admission rule: what the planner is told of it, the verdict on each, and what is published.

Planning -> Terms, with the request          PlanReady -> Replanned, Proposal -> Verdict -> Decision
"""

from __future__ import annotations

from collections.abc import Mapping

from nereus.control.announced import Replanned
from nereus.control.effects import Decision
from nereus.control.events import PlanReady
from nereus.control.moving import HOUR_S
from nereus.control.phases import Planning
from nereus.control.state import JobState
from nereus.emu.plan import StagePlan
from nereus.policy.admission import Terms, Verdict, admit
from nereus.policy.proposal import Proposal

OPERATOR_SIGNAL = "operator"
"""What is told in place of a signal where an operator asked: no signal has crossed."""


def terms(state: JobState, planning: Planning) -> Terms | None:
    """What the answer will be judged by; None for a dry run, which is to tell of all proposals."""
    request = planning.request
    if request is not None and request.dry_run:
        return None
    return Terms(
        horizon_steps=planning.horizon_steps,
        gamma=state.config.policy.gamma,
        urgent=planning.is_urgent,
        forced=request is not None and request.forced,
    )


def judged(
    state: JobState, planning: Planning, proposal: Proposal, current_s: float, now_s: float
) -> tuple[Verdict, dict[str, StagePlan]]:
    """The verdict on a proposal, and the stage plans that it changes."""
    changed = {name: plan for name, plan in proposal.stages.items() if plan != state.plan.stages.get(name)}
    return _verdict(state, planning, proposal, current_s, now_s), changed


def _verdict(state: JobState, planning: Planning, proposal: Proposal, current_s: float, now_s: float) -> Verdict:
    gamma = state.config.policy.gamma
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
        num_within_hour=sum(now_s - at_s < HOUR_S for at_s in state.committed_s),
        max_per_hour=state.config.policy.max_transitions_per_hour,
        at_least=not proposal.compiled,
    )


def decision(
    state: JobState, planning: Planning, proposal: Proposal, changed: Mapping[str, StagePlan], verdict: Verdict
) -> Decision:
    """What is told of a verdict."""
    return Decision(
        step=state.step,
        cycle=planning.cycle,
        triggers=tuple(trigger.reason for trigger in planning.triggers),
        target={
            name: f"{plan}, micro-batch {plan.micro_batch}{', recompute' if plan.recompute else ''}"
            for name, plan in changed.items()
        },
        verdict=verdict,
        proposal=proposal,
        command=planning.request.command if planning.request else None,
        is_dry_run=planning.request is not None and planning.request.dry_run,
    )


def replanned(state: JobState, planning: Planning, event: PlanReady) -> Replanned:
    """What is told of an answer, before the verdicts."""
    crossed = dict.fromkeys(str(trigger.signal) for trigger in planning.triggers)
    return Replanned(
        step=state.step,
        cycle=planning.cycle,
        signals=tuple(crossed) if planning.request is None else (OPERATOR_SIGNAL,),
        num_proposals=len(event.proposals),
        current_l_step_s=event.current_l_step_s,
        seconds=event.seconds,
    )
