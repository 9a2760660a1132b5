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
) -> Verdict:
    """The verdict on a feasible transition from a plan of `current_s` per step to one of `target_s`."""
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
    numbers = (
        f"moving takes {l_tran_s:.2f} s and saves {delta:.2f} s a step: paid back in {payback:.2f} of {allowed:.2f} steps"
    )
    if gamma <= 0 or payback > allowed:
        return verdict(Code.REJECTED_PAYBACK, numbers)
    if max_per_hour is not None and num_within_hour >= max_per_hour:
        return verdict(
            Code.REJECTED_RATE, f"{numbers}; {num_within_hour} transitions in the last hour, {max_per_hour:g} may be"
        )
    return verdict(Code.ADMITTED, numbers)
