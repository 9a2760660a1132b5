"""A loop that has given up its step: what it is answered, and that it runs the same step again."""

from __future__ import annotations

from nereus.control.effects import ReleaseBoundary, RequestPlan
from nereus.control.events import PoolChanged, StepStopped
from nereus.control.phases import Planning, Steady
from tests.control.harness import Core
from tests.control.test_core import notice, steady


def stopped(core: Core) -> None:
    core.post(StepStopped(step=core.state.step))


def test_step_given_up_for_a_device_that_leaves_is_answered_with_a_plan_without_it() -> None:
    """ "Resource revocation [...] triggers the urgent path" (paper, section 4.3)."""
    core = steady(num_devices=8)
    step, units = core.state.step, {emu.unit for emu in core.state.bound}
    notice(core, 3, at=step)
    stopped(core)
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.is_urgent
    assert core.state.phase.holding
    assert {emu.unit for emu in core.state.bound} == units
    core.settle()
    assert isinstance(core.state.phase, Steady)
    assert core.state.step == step
    assert 3 not in core.state.plan.devices


def test_step_given_up_without_a_cause_is_run_again() -> None:
    core = steady(num_devices=8)
    before, asked = core.releases, len(core.asked(RequestPlan))
    stopped(core)
    assert core.releases == before + 1
    assert len(core.asked(RequestPlan)) == asked


def test_step_given_up_while_a_plan_waits_carries_that_plan_out() -> None:
    core = steady(num_devices=8)
    notice(core, 3, at=core.state.step + 3)
    core.boundary()
    core.settle()
    before = len(core.asked(ReleaseBoundary))
    stopped(core)
    core.settle()
    assert 3 not in core.state.plan.devices
    assert len(core.asked(ReleaseBoundary)) > before


def test_first_step_of_a_job_can_be_given_up() -> None:
    """Nothing was reported yet, so there is nothing to compare lengths with."""
    core = Core(steady().state.config).start(range(8))
    core.post(PoolChanged(step=0, arriving=(), leaving={3: 0}))
    stopped(core)
    core.settle()
    assert 3 not in core.state.plan.devices
