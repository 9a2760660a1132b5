"""What operators limit beyond the payback rule: pins, transitions per hour, a canary; and the end of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nereus.control.effects import CanaryRead, Publish
from nereus.control.events import BoundaryReached, PlanReady
from nereus.control.phases import Admitted, Planning, Steady
from nereus.policy.admission import Code
from nereus.policy.horizon import Signal
from nereus.policy.proposal import propose
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from tests.control.harness import Core, report, with_proposals
from tests.runtime.loop import adaptive_config


def steady(**policy: Any) -> Core:
    core = Core(adaptive_config(**policy)).start(range(4))
    core.boundary()
    core.settle()
    return core


def step(core: Core, seconds: float, tokens: float = 6.0) -> None:
    """A step of so many seconds."""
    told = report(core.state, core.state.step + 1, tokens)
    core.post(BoundaryReached(report=replace(told, step_s=seconds)))


def paying(core: Core, seconds: float, tokens: float, saves_s: float = 1.0) -> None:
    """A step after which a plan is admitted that saves so much."""
    step(core, seconds, tokens)
    (answer,) = core.pending
    core.pending.clear()
    assert isinstance(answer, PlanReady)
    core.post(with_proposals(answer, l_step_s=answer.current_l_step_s - saves_s, l_tran_s=0.0, infeasible=None))


def canaries(core: Core) -> list[CanaryRead]:
    return [e.news for e in core.effects if isinstance(e, Publish) and isinstance(e.news, CanaryRead)]


# --- the end of the job ------------------------------------------------------------------------------------------------


def test_horizon_is_no_longer_than_what_is_left_of_the_job() -> None:
    core = Core(replace(adaptive_config(), num_steps=8)).start(range(4))
    core.boundary()
    core.settle()
    horizons = []
    for wait, tokens in ((0, 12.0), (4, 24.0), (0, 48.0)):
        for _ in range(wait):
            core.boundary(core.state.reference.response_tokens)  # type: ignore[union-attr]
        core.boundary(tokens)
        assert isinstance(core.state.phase, Planning)
        horizons.append((core.state.step, core.state.phase.horizon_steps))
        (answer,) = core.pending
        core.pending.clear()
        assert isinstance(answer, PlanReady)
        core.post(with_proposals(answer, l_step_s=1e9, infeasible=None))
    assert horizons == [(2, 1.0), (7, 1.0), (8, 0.0)]


# --- pins --------------------------------------------------------------------------------------------------------------


def test_pinned_model_stage_stays_as_it_is_in_every_proposal() -> None:
    core = steady(pins=[ACTOR_TRAINING])
    core.boundary(12.0)
    snapshot = replace(core.state.snapshot, pins=frozenset({ACTOR_TRAINING}))
    proposals = propose(snapshot, 4)
    assert proposals
    for proposal in proposals:
        assert proposal.stages[ACTOR_TRAINING] == core.state.plan.stages[ACTOR_TRAINING]
        plan = replace(core.state.plan, stages=proposal.stages)
        assert proposal.l_step_s == pytest.approx(snapshot.pricing.step_seconds(plan, snapshot.lengths))
    free = propose(core.state.snapshot, 4)
    assert any(p.stages[ACTOR_TRAINING] != core.state.plan.stages[ACTOR_TRAINING] for p in free)


def test_pins_are_asked_for_unless_the_plan_cannot_go_on() -> None:
    core = steady(pins=[ACTOR_GENERATION, REFERENCE_INFERENCE])
    core.plans = False
    (request, *_) = core.boundary(12.0)
    assert request.snapshot.pins == {ACTOR_GENERATION, REFERENCE_INFERENCE}  # type: ignore[union-attr]


# --- transitions per hour ----------------------------------------------------------------------------------------------


def test_transitions_of_an_hour_are_counted_by_their_commits() -> None:
    core = steady(max_transitions_per_hour=1)
    paying(core, 4.0, 12.0)
    step(core, 4.0, 12.0)
    core.settle()
    assert core.state.plan.epoch == 1
    paying(core, 4.0, 24.0)
    assert core.decisions[-1].verdict.code is Code.REJECTED_RATE
    assert isinstance(core.state.phase, Steady)
    core.now_s += 3600.0
    paying(core, 4.0, 48.0)
    assert core.decisions[-1].verdict.code is Code.ADMITTED
    assert isinstance(core.state.phase, Admitted)


# --- the canary --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after_s", "returns"), [(3.0, False), (6.0, True)])
def test_canary_compares_what_was_saved_with_what_was_predicted_and_may_return(after_s: float, returns: bool) -> None:
    core = steady(canary_steps=2, canary_return=True)
    before = core.state.plan.stages
    step(core, 5.0)
    paying(core, 4.0, 12.0, saves_s=0.75)
    step(core, 4.0, 12.0)
    core.settle()
    assert core.state.plan.epoch == 1
    for _ in range(2):
        step(core, after_s, 12.0)
        core.settle()
    (read,) = canaries(core)
    assert (read.epoch, read.predicted_s) == (1, pytest.approx(0.75))
    assert read.realised_s == pytest.approx(4.0 - after_s)  # the two steps before the transition took 4 s each
    assert read.returns is returns
    assert (core.state.plan.stages == before) is returns
    assert core.state.plan.epoch == (2 if returns else 1)


def test_canary_does_not_watch_without_being_told_to() -> None:
    core = steady()
    paying(core, 4.0, 12.0)
    step(core, 4.0, 12.0)
    core.settle()
    for _ in range(4):
        step(core, 9.0, 12.0)
        core.settle()
    assert canaries(core) == []


# --- efficiencies ------------------------------------------------------------------------------------------------------


def test_device_that_becomes_slow_triggers_when_the_fit_has_followed() -> None:
    """Paper, section 3: thermal throttling and interference change the step latency of a plan as it is."""
    core = steady()
    triggered: list[tuple[int, Signal]] = []
    for number in range(2, 31):
        told = report(core.state, number, 6.0)
        slow = 1.0 if number <= 12 else 3.0
        core.post(BoundaryReached(report=replace(told, stage_s={k: v * slow for k, v in told.stage_s.items()})))
        if isinstance(core.state.phase, Planning):
            triggered += [(number, trigger.signal) for trigger in core.state.phase.triggers]
            (answer,) = core.pending
            assert isinstance(answer, PlanReady)
            core.pending.clear()
            core.post(with_proposals(answer, l_step_s=1e9, infeasible=None))
    assert triggered
    assert all(number > 12 for number, _ in triggered)
    assert {signal for _, signal in triggered} <= {Signal.COMPUTE, Signal.COMMUNICATION}
    assert triggered[0][1] is Signal.COMPUTE
