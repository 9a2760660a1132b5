"""When the loop waits for the planner although the plan in force could go on: if the answer takes little of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.control.effects import ReleaseBoundary
from nereus.control.events import BoundaryReached, PlanReady, PoolChanged
from nereus.control.phases import Planning, Steady, Transitioning
from nereus.control.planning import PATIENCE
from tests.control.harness import Core, report
from tests.control.test_core import adaptive_config, with_proposals

STEP_S = 100.0


def answered(answer_s: float) -> Core:
    """A job whose planner took so long for its first answer, which was a rejection."""
    core = Core(adaptive_config()).start(range(4))
    crossing(core, 6.0)
    answer = crossing(core, 12.0)
    assert answer is not None
    core.post(with_proposals(replace(answer, seconds=answer_s), l_step_s=1e9, infeasible=None))
    assert isinstance(core.state.phase, Steady)
    return core


def crossing(core: Core, tokens: float) -> PlanReady | None:
    """A step of a hundred seconds with responses of this length, and the planner's answer, not delivered yet."""
    told = report(core.state, core.state.step + 1, tokens)
    core.post(BoundaryReached(report=replace(told, step_s=STEP_S)))
    answers = [event for event in core.pending if isinstance(event, PlanReady)]
    core.pending.clear()
    return answers[0] if answers else None


def is_held(core: Core) -> bool:
    return core.releases < core.state.step + 1


@pytest.mark.parametrize(("share", "waits"), [(0.99, True), (1.01, False)])
def test_loop_waits_for_an_answer_that_takes_little_of_a_step(share: float, waits: bool) -> None:
    core = answered(share * PATIENCE * STEP_S)
    crossing(core, 24.0)
    assert isinstance(core.state.phase, Planning)
    assert is_held(core) is waits


def test_loop_does_not_wait_for_the_first_answer() -> None:
    core = Core(adaptive_config()).start(range(4))
    crossing(core, 6.0)
    assert crossing(core, 12.0) is not None
    assert not is_held(core)


def test_what_is_admitted_meanwhile_is_carried_out_at_this_boundary() -> None:
    core = answered(0.0)
    answer = crossing(core, 24.0)
    assert answer is not None
    core.post(with_proposals(answer, l_step_s=answer.current_l_step_s - 1.0, l_tran_s=0.0, infeasible=None))
    assert isinstance(core.state.phase, Transitioning)
    assert is_held(core)


def test_without_a_plan_for_a_notice_that_is_far_the_loop_goes_on_and_waits_for_no_devices() -> None:
    core = Core(replace(adaptive_config(), pool_is_live=True)).start(range(4))
    core.plans = False
    core.state = replace(core.state, answer_s=0.0)
    core.post(PoolChanged(step=0, arriving=(), leaving={3: 20}))
    core.boundary()
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.is_urgent
    assert is_held(core)
    core.post(PlanReady(cycle=core.state.cycle, proposals=(), current_l_step_s=1.0, seconds=0.0))
    assert isinstance(core.state.phase, Steady)
    assert not is_held(core)


def test_rejection_lets_the_loop_go() -> None:
    core = answered(0.0)
    answer = crossing(core, 24.0)
    assert answer is not None
    effects = core.post(with_proposals(answer, l_step_s=1e9, infeasible=None))
    assert any(isinstance(effect, ReleaseBoundary) for effect in effects)
    assert isinstance(core.state.phase, Steady)
    assert not is_held(core)
