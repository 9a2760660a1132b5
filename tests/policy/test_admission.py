"""Admission: the truth table of Eq. (2), its boundary, and the urgent path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.policy.admission import Code, Verdict, admit
from nereus.spec.policy import GAMMA

SECONDS = st.floats(1e-3, 1e3)
HORIZONS = st.floats(1, 1000)


def verdict(
    *, saves: float = 2.0, costs: float = 10.0, horizon: float = 10.0, urgent: bool = False, gamma: float = GAMMA
) -> Verdict:
    """The verdict on moving from 8 s a step to `saves` less, at a cost of `costs`."""
    return admit(8.0, 8.0 - saves, costs, horizon, urgent=urgent, gamma=gamma)


def test_confidence_margin_is_that_of_the_paper() -> None:
    assert GAMMA == 0.5


@pytest.mark.parametrize(
    ("saves", "costs", "horizon", "urgent", "code"),
    [
        (2.0, 9.0, 10.0, False, Code.ADMITTED),
        (2.0, 10.0, 10.0, False, Code.ADMITTED),  # 10 / 2 = 5 = 0.5 * 10: equality is admitted
        (2.0, 10.25, 10.0, False, Code.REJECTED_PAYBACK),
        (2.0, 10.0, 9.5, False, Code.REJECTED_PAYBACK),
        (2.0, 0.5, 1.0, False, Code.ADMITTED),
        (2.0, 1.5, 1.0, False, Code.REJECTED_PAYBACK),  # the first horizon: it must pay within half a step
        (0.0, 0.0, 10.0, False, Code.REJECTED_NO_GAIN),
        (0.0, 1.0, 1000.0, False, Code.REJECTED_NO_GAIN),
        (-1.0, 1.0, 1000.0, False, Code.REJECTED_NO_GAIN),
        (-1.0, 1.0, 1.0, True, Code.ADMITTED_URGENT),
        (0.0, 1.0, 1.0, True, Code.ADMITTED_URGENT),
        (2.0, 1e9, 1.0, True, Code.ADMITTED_URGENT),
        (2.0, 1.0, 10.0, True, Code.ADMITTED_URGENT),
    ],
)
def test_verdict_follows_the_truth_table(saves: float, costs: float, horizon: float, urgent: bool, code: Code) -> None:
    found = verdict(saves=saves, costs=costs, horizon=horizon, urgent=urgent)
    assert found.code is code
    assert found.is_admitted == (code in (Code.ADMITTED, Code.ADMITTED_URGENT))


def test_only_three_codes_admit() -> None:
    admitting = [code for code in Code if Verdict(code, 0, 0, 0, 0, "").is_admitted]
    assert admitting == [Code.ADMITTED, Code.ADMITTED_URGENT, Code.ADMITTED_FORCED]


@given(current=SECONDS, target=SECONDS, costs=SECONDS, horizon=HORIZONS)
def test_margin_of_zero_admits_only_urgent_transitions(current: float, target: float, costs: float, horizon: float) -> None:
    assert not admit(current, target, costs, horizon, urgent=False, gamma=0).is_admitted
    assert admit(current, target, costs, horizon, urgent=True, gamma=0).code is Code.ADMITTED_URGENT


def test_margin_of_zero_rejects_a_transition_that_costs_nothing() -> None:
    """ "Setting gamma = 0 admits only urgent transitions" (paper, section 4.3)."""
    assert not verdict(costs=0.0, gamma=0).is_admitted


@given(current=SECONDS, target=SECONDS, costs=SECONDS, horizon=HORIZONS, gamma=st.floats(0, 1))
def test_opportunistic_transition_is_admitted_exactly_when_equation_two_holds(
    current: float, target: float, costs: float, horizon: float, gamma: float
) -> None:
    saves = current - target
    holds = saves > 0 and costs / saves <= gamma * horizon
    assert admit(current, target, costs, horizon, urgent=False, gamma=gamma).is_admitted == holds


@given(saves=SECONDS, costs=SECONDS, horizon=HORIZONS, more=st.floats(0, 100), gamma=st.floats(0, 1))
def test_longer_horizon_larger_saving_or_cheaper_move_never_turns_admission_into_rejection(
    saves: float, costs: float, horizon: float, more: float, gamma: float
) -> None:
    if not admit(saves, 0.0, costs, horizon, urgent=False, gamma=gamma).is_admitted:
        return
    assert admit(saves, 0.0, costs, horizon + more, urgent=False, gamma=gamma).is_admitted
    assert admit(saves + more, 0.0, costs, horizon, urgent=False, gamma=gamma).is_admitted
    assert admit(saves, 0.0, costs / (1 + more), horizon, urgent=False, gamma=gamma).is_admitted


def test_verdict_keeps_its_numbers() -> None:
    found = verdict(saves=2.0, costs=9.0, horizon=10.0)
    assert (found.delta_l_s, found.l_tran_s, found.horizon_steps, found.gamma) == (2.0, 9.0, 10.0, 0.5)


def test_reason_of_payback_has_both_sides_of_the_comparison() -> None:
    expected = "moving takes 12.00 s and saves 2.00 s a step: paid back in 6.00 of 5.00 steps"
    assert verdict(costs=12.0).reason == expected


def test_reason_of_no_gain_has_both_latencies() -> None:
    assert verdict(saves=-1.0).reason == "a step would take 9.00 s instead of 8.00 s"


def test_reason_of_urgency_says_that_the_plan_cannot_go_on() -> None:
    assert verdict(urgent=True).reason == "the plan cannot go on; moving takes 10.00 s"


@pytest.mark.parametrize(("within", "code"), [(1, Code.ADMITTED), (2, Code.REJECTED_RATE), (3, Code.REJECTED_RATE)])
def test_transitions_beyond_the_limit_of_an_hour_are_rejected_even_if_they_pay(within: int, code: Code) -> None:
    verdict = admit(10.0, 8.0, 1.0, 10.0, urgent=False, num_within_hour=within, max_per_hour=2)
    assert verdict.code is code


@pytest.mark.parametrize("must", ["urgent", "forced"])
def test_limit_of_an_hour_is_not_for_what_must_be(must: str) -> None:
    flags = {"urgent": must == "urgent", "forced": must == "forced"}
    assert admit(10.0, 8.0, 1.0, 10.0, num_within_hour=9, max_per_hour=2, **flags).is_admitted
