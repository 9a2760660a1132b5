"""Other admission rules under the same controller: what comes before the core is changed, and the core is not.

replan-always    every transition that is predicted to be faster is carried out, whatever it costs
per-component    each model-stage is judged by its own payback, as DynaRL does (paper, section 7.3.3)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nereus.emu.plan import Plan, StagePlan
from nereus.errors import LayoutError
from nereus.planner.outline_pricing import OutlinePricing
from nereus.policy.admission import admit
from nereus.policy.proposal import Proposal, Snapshot, expected, propose, transition_to

FASTER = 1e-6
"""Share by which a plan must look faster for the core to look at its payback at all."""


def replan_always(snapshot: Snapshot, top: int) -> tuple[Proposal, ...]:
    """Proposals whose transitions look free."""
    return tuple(replace(proposal, l_tran_s=0.0) for proposal in propose(snapshot, top))


@dataclass(frozen=True)
class PerComponent:
    """Judges the model-stages of the fastest plan one by one."""

    horizon_steps: Callable[[], float]
    is_urgent: Callable[[], bool]
    gamma: float

    def __call__(self, snapshot: Snapshot, top: int) -> tuple[Proposal, ...]:
        """One proposal with the model-stages that pay for themselves; all of the fastest where the plan cannot go on."""
        found = propose(snapshot, top)
        if self.is_urgent() or not found:
            return found
        best = next((proposal for proposal in found if proposal.infeasible is None), None)
        if best is None:
            return ()
        paying = {
            name: plan
            for name, plan in best.stages.items()
            if plan != snapshot.plan.stages[name] and self._pays(snapshot, name, plan)
        }
        joined = self._joined(snapshot, best, paying) if paying else None
        return (joined,) if joined else ()

    def _pays(self, snapshot: Snapshot, name: str, plan: StagePlan) -> bool:
        """Whether the seconds that this model-stage saves repay what moving it alone takes."""
        assert isinstance(snapshot.pricing, OutlinePricing)
        after = Plan(snapshot.plan.epoch, {**snapshot.plan.stages, name: plan})
        now, then = (self._own(snapshot, one, name) for one in (snapshot.plan, after))
        seconds = self._moving(snapshot, {name: plan})
        if seconds is None:
            return False
        return admit(now, then, seconds, self.horizon_steps(), urgent=False, gamma=self.gamma).is_admitted

    def _own(self, snapshot: Snapshot, plan: Plan, name: str) -> float:
        assert isinstance(snapshot.pricing, OutlinePricing)
        workflow = snapshot.pricing.outline.workflow
        found = snapshot.pricing.stage_seconds(plan, snapshot.lengths)
        return sum(found[stage] for stage in workflow.roles(name))

    def _moving(self, snapshot: Snapshot, changed: dict[str, StagePlan]) -> float | None:
        """L_tran of a part of the plan; None where it cannot be carried out."""
        try:
            transition, memory = transition_to(snapshot, changed, snapshot.plan.epoch + 1)
        except LayoutError:
            return None
        if memory.violation is not None:
            return None
        return expected(snapshot, transition).seconds

    def _joined(self, snapshot: Snapshot, best: Proposal, paying: dict[str, StagePlan]) -> Proposal | None:
        """What pays, together: if it can be carried out and fits. The whole step is not asked."""
        stages = {**snapshot.plan.stages, **paying}
        plan = Plan(snapshot.plan.epoch, stages)
        try:
            seconds = snapshot.pricing.step_seconds(plan, snapshot.lengths)
        except LayoutError:
            return None
        peak = max(snapshot.pricing.peaks(plan, snapshot.lengths).values())
        if peak > snapshot.pricing.usable_bytes or self._moving(snapshot, paying) is None:
            return None
        looks = min(seconds, snapshot.l_step_s() * (1 - FASTER))
        return replace(best, stages=stages, l_step_s=looks, peak_bytes=peak, l_tran_s=0.0)
