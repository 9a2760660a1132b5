"""No plan fits what is left: the job waits for devices that are on their way, and the time is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.control.effects import Publish, RequestPlan, Waited
from nereus.control.events import DeviceFailed, EndpointDied, PlanReady, PoolChanged, StepLost
from nereus.control.phases import Paused, Planning, Steady, Stopped, Transitioning, Waiting
from tests.control.harness import Core
from tests.runtime.loop import adaptive_config


def losing(*, live: bool = False, arriving: tuple[int, ...] = (4, 5)) -> Core:
    """A job that has lost a unit in a step, and no plan for what is left; devices arrive."""
    core = Core(replace(adaptive_config(), pool_is_live=live)).start(range(4))
    core.boundary()
    core.settle()
    core.plans = False
    if arriving:
        core.post(PoolChanged(step=core.state.step + 1, arriving=arriving, leaving={}))
    core.post(EndpointDied(endpoint="d3.0", during="a step"))
    core.post(StepLost(endpoint="d3.0", during="a step"))
    assert isinstance(core.state.phase, Planning)
    core.post(PlanReady(cycle=core.state.cycle, proposals=(), current_l_step_s=1.0, seconds=0.1))
    return core


def waits(core: Core) -> list[Waited]:
    return [e.news for e in core.effects if isinstance(e, Publish) and isinstance(e.news, Waited)]


def test_job_waits_for_devices_and_goes_on_when_a_plan_fits_and_the_time_is_counted() -> None:
    core = losing()
    began, before = core.now_s, core.releases
    assert isinstance(core.state.phase, Waiting)
    core.plans = True
    core.settle()
    assert isinstance(core.state.phase, Steady)
    assert core.releases == before + 1
    assert 3 not in core.state.plan.devices
    (waited,) = waits(core)
    decided = next(at_s for event, at_s in reversed(core.events) if isinstance(event, PlanReady))
    assert waited.seconds == pytest.approx(decided - began)
    assert core.state.waiting_since_s is None


def test_every_device_that_comes_is_planned_with() -> None:
    core = losing()
    asked = len(core.asked(RequestPlan))
    core.post(core.pending.pop(0))
    assert isinstance(core.state.phase, Planning)
    assert len(core.asked(RequestPlan)) == asked + 1
    core.post(PlanReady(cycle=core.state.cycle, proposals=(), current_l_step_s=1.0, seconds=0.1))
    assert isinstance(core.state.phase, Waiting)


def test_job_stops_when_nothing_is_on_its_way_any_more() -> None:
    core = losing(arriving=(4,))
    core.pending.clear()
    core.post(DeviceFailed(device=4, endpoint="d4.0", reason="no memory"))
    assert isinstance(core.state.phase, Stopped)
    assert core.stop is not None
    assert "device 4 did not start: no memory" in core.stop
    assert len(waits(core)) == 1


def test_job_without_devices_on_their_way_stops_unless_its_pool_is_live() -> None:
    assert isinstance(losing(arriving=()).state.phase, Stopped)
    core = losing(arriving=(), live=True)
    assert isinstance(core.state.phase, Waiting)
    core.plans = True
    core.post(PoolChanged(step=core.state.step, arriving=(4,), leaving={}))
    core.settle()
    assert isinstance(core.state.phase, Steady)
    assert 4 in core.state.usable


def test_last_copy_that_dies_in_the_wait_stops_the_job() -> None:
    core = losing()
    core.pending.clear()
    for endpoint in ("d0.0", "d1.0", "d2.0"):
        core.post(EndpointDied(endpoint=endpoint, during="nothing"))
    assert isinstance(core.state.phase, Stopped)
    assert "no intact copy" in str(core.stop)


def test_loop_that_asks_again_in_the_wait_is_not_released() -> None:
    core = losing()
    assert core.boundary(step_number=core.state.step) == ()
    assert isinstance(core.state.phase, Waiting)
    assert not isinstance(core.state.phase, Paused | Transitioning)
