"""Whether a feasible transition is carried out: payback within the confidence margin, unless it must be (paper, Eq. (2)).

    admitted  <=>  urgent  or  dL > 0 and L_tran / dL <= gamma * H_x

Every decision is a value: a code, its numbers, one sentence. Logs, summary, metrics and tests read that value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nereus.spec.policy import GAMMA


class Code(StrEnum):
    """The verdict on one candidate."""

    ADMITTED = "admitted"
    """It pays within gamma * H_x."""
    ADMITTED_URGENT = "admitted_urgent"
    """The current plan cannot go on; payback is waived."""
    ADMITTED_FORCED = "admitted_forced"
    """An operator wants it whether it pays or not."""
    REJECTED_PAYBACK = "rejected_payback"
    """It takes longer to pay than conditions are expected to hold."""
    REJECTED_BOUND = "rejected_bound"
    """It would take too long to pay even if moving took the least that it can: no transition DAG was made."""
    REJECTED_NO_GAIN = "rejected_no_gain"
    """It is predicted to be no faster than the current plan."""
    REJECTED_RATE = "rejected_rate"
    """It would pay, but there were as many transitions within the hour as the policy allows."""
    INFEASIBLE_MEMORY = "infeasible_memory"
    """Moving there does not fit in memory."""
    INFEASIBLE_ORDER = "infeasible_order"
    """No order of primitives leads there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one candidate plan."""

    code: Code
    delta_l_s: float
    """Predicted seconds saved per step."""
    l_tran_s: float
    """Predicted seconds of the transition."""
    horizon_steps: float
    gamma: float
    reason: str
    """One sentence with the numbers."""

    @property
    def is_admitted(self) -> bool:
        return self.code in (Code.ADMITTED, Code.ADMITTED_URGENT, Code.ADMITTED_FORCED)


@dataclass(frozen=True, slots=True)
class Terms:
    """What an answer of the planner will be judged by."""

    horizon_steps: float
    gamma: float = GAMMA
    urgent: bool = False
    """Whether the current plan cannot go on."""
    forced: bool = False
    """Whether an operator wants a change whether it pays or not."""

    def admit(self, current_s: float, target_s: float, l_tran_s: float) -> Verdict:
        """Eq. (2), guards apart."""
        return admit(
            current_s,
            target_s,
            l_tran_s,
            self.horizon_steps,
            urgent=self.urgent,
            forced=self.forced,
            gamma=self.gamma,
        )


def admit(
    current_s: float,
    target_s: float,
    l_tran_s: float,
    horizon_steps: float,
    *,
    urgent: bool,
    forced: bool = False,
    gamma: float = GAMMA,
    num_within_hour: int = 0,
    max_per_hour: float | None = None,
    at_least: bool = False,
) -> Verdict:
    """The verdict on a feasible transition from a plan of `current_s` per step to one of `target_s`.

    With `at_least`, `l_tran_s` is a lower bound, for which the transition was refused: it is not admitted.
    """
    delta = current_s - target_s

    def verdict(code: Code, reason: str) -> Verdict:
        return Verdict(code, delta, l_tran_s, horizon_steps, gamma, reason)

    if urgent:
        return verdict(Code.ADMITTED_URGENT, f"the plan cannot go on; moving takes {l_tran_s:.2f} s")
    if forced:
        return verdict(Code.ADMITTED_FORCED, f"an operator forced it; moving takes {l_tran_s:.2f} s")
    if delta <= 0:
        return verdict(Code.REJECTED_NO_GAIN, f"a step would take {target_s:.2f} s instead of {current_s:.2f} s")
    payback, allowed = l_tran_s / delta, gamma * horizon_steps
    least = "at least " if at_least else ""
    numbers = (
        f"moving takes {least}{l_tran_s:.2f} s and saves {delta:.2f} s a step: "
        f"paid back in {least}{payback:.2f} of {allowed:.2f} steps"
    )
    if at_least:
        return verdict(Code.REJECTED_BOUND, numbers)
    if gamma <= 0 or payback > allowed:
        return verdict(Code.REJECTED_PAYBACK, numbers)
    if max_per_hour is not None and num_within_hour >= max_per_hour:
        return verdict(
            Code.REJECTED_RATE, f"{numbers}; {num_within_hour} transitions in the last hour, {max_per_hour:g} may be"
        )
    return verdict(Code.ADMITTED, numbers)
