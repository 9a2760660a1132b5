"""Other admission rules under the same controller: what comes before the core is changed, and the core is not.

replan-always    every transition that is predicted to be faster is carried out, whatever it costs
per-component    each model-stage is judged by its own payback, as DynaRL does (paper, section 7.3.3)
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from nereus.emu.plan import Plan, StagePlan
from nereus.errors import LayoutError
from nereus.policy.admission import Terms
from nereus.policy.proposal import Proposal, expected, propose, transition_to
from nereus.policy.snapshot import Snapshot

FASTER = 1e-6
"""Share by which a plan must look faster for the core to look at its payback at all."""


def replan_always(snapshot: Snapshot, top: int) -> tuple[Proposal, ...]:
    """Proposals whose transitions look free, up to the first that can be carried out and is faster."""
    asked = snapshot.terms
    free = replace(asked, horizon_steps=inf, gamma=1.0) if asked else None
    return tuple(replace(proposal, l_tran_s=0.0) for proposal in propose(replace(snapshot, terms=free), top))


def per_component(snapshot: Snapshot, top: int) -> tuple[Proposal, ...]:
    """One proposal with the model-stages that pay for themselves; all of the fastest where the plan cannot go on."""
    terms = snapshot.terms
    if terms is None or terms.urgent:
        return propose(snapshot, top)
    found = propose(replace(snapshot, terms=replace(terms, urgent=True)), top)
    best = next((proposal for proposal in found if proposal.infeasible is None), None)
    if best is None:
        return ()
    paying = {
        name: plan
        for name, plan in best.stages.items()
        if plan != snapshot.plan.stages[name] and _pays(snapshot, terms, name, plan)
    }
    joined = _joined(snapshot, best, paying) if paying else None
    return (joined,) if joined else ()


def _pays(snapshot: Snapshot, terms: Terms, name: str, plan: StagePlan) -> bool:
    """Whether the seconds that this model-stage saves repay what moving it alone takes."""
    after = Plan(snapshot.plan.epoch, {**snapshot.plan.stages, name: plan})
    now, then = (snapshot.pricing.holder_seconds(one, snapshot.lengths)[name] for one in (snapshot.plan, after))
    seconds = _moving(snapshot, {name: plan})
    return seconds is not None and terms.admit(now, then, seconds).is_admitted


def _moving(snapshot: Snapshot, changed: dict[str, StagePlan]) -> float | None:
    """L_tran of a part of the plan; None where it cannot be carried out."""
    try:
        transition, memory = transition_to(snapshot, changed, snapshot.plan.epoch + 1)
    except LayoutError:
        return None
    if memory.violation is not None:
        return None
    return expected(snapshot, transition).seconds


def _joined(snapshot: Snapshot, best: Proposal, paying: dict[str, StagePlan]) -> Proposal | None:
    """What pays, together: if it can be carried out and fits. The whole step is not asked."""
    stages = {**snapshot.plan.stages, **paying}
    plan = Plan(snapshot.plan.epoch, stages)
    try:
        seconds = snapshot.pricing.step_seconds(plan, snapshot.lengths)
    except LayoutError:
        return None
    peak = max(snapshot.pricing.peaks(plan, snapshot.lengths).values())
    if peak > snapshot.pricing.usable_bytes or _moving(snapshot, paying) is None:
        return None
    looks = min(seconds, snapshot.l_step_s() * (1 - FASTER))
    return replace(best, stages=stages, l_step_s=looks, peak_bytes=peak, l_tran_s=0.0)
