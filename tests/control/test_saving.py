"""When a job saves, when it starts anew from what it saved, and what it does where neither helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import (
    Answered,
    Publish,
    ReleaseBoundary,
    RequestPlan,
    RestoreState,
    RetireEndpoints,
    SaveState,
    SealState,
    SpawnDevices,
)
from nereus.control.events import (
    BoundaryReached,
    EndpointDied,
    JobStarted,
    OperatorAsked,
    OpFailed,
    PoolChanged,
    StateSealed,
    StateWritten,
    StepLost,
    Verb,
)
from nereus.control.phases import Paused, Planning, Restoring, Saving, Steady, Stopped, Transitioning, Waiting
from nereus.control.restoring import MAX_RESTARTS
from nereus.policy.admission import Code
from nereus.policy.proposal import propose
from nereus.spec.policy import CheckpointRule
from tests.control.harness import Core, plan_ready, report
from tests.runtime.loop import adaptive_config


def job(every: int | None = None, *, live: bool = False) -> Core:
    """Four devices that all model-stages use."""
    config = replace(adaptive_config(), pool_is_live=live, checkpoint=CheckpointRule(every_steps=every))
    return Core(config).start(range(4))


def step(core: Core) -> None:
    core.boundary()
    core.settle()


def phase(core: Core) -> type:
    return type(core.state.phase)


def news(core: Core, kind: type) -> list:  # type: ignore[type-arg]
    return [e.news for e in core.effects if isinstance(e, Publish) and isinstance(e.news, kind)]


def answer(core: Core, *, feasible: bool = True, nothing: bool = False) -> None:
    """The planner answers the open request: as it would, or with plans that no transition leads to, or with none."""
    request = core.asked(RequestPlan)[-1]
    assert isinstance(request, RequestPlan)
    proposals = () if nothing else propose(request.snapshot, request.top)
    if not feasible:
        proposals = tuple(replace(p, infeasible=(Code.INFEASIBLE_MEMORY, "a peak is in the way")) for p in proposals)
    core.post(plan_ready(request.cycle, request.snapshot, proposals))


def revoked(core: Core) -> Core:
    """At its next boundary the job hears that device 3 goes after one more step, so that the loop is held for a plan."""
    step(core)
    core.plans = False
    core.post(PoolChanged(step=2, arriving=(), leaving={3: 3}))
    core.boundary()
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.holding
    return core


def settle_facts(core: Core) -> None:
    """All but the planner answer."""
    core.plans = False
    core.settle()


def test_state_is_saved_every_so_many_steps_and_the_loop_goes_on_when_it_is_whole() -> None:
    core = job(every=2)
    step(core)
    assert core.asked(SaveState) == []
    core.boundary()
    released = core.releases
    assert phase(core) is Saving
    (asked,) = core.asked(SaveState)
    assert isinstance(asked, SaveState)
    assert set(asked.emus) == set(core.state.bound)
    while isinstance(core.pending[0], StateWritten):
        assert core.asked(SealState) == []
        core.post(core.pending.pop(0))
    assert core.releases == released
    assert isinstance(core.pending[0], StateSealed)
    core.settle()
    assert core.releases == released + 1
    assert [(s.step, s.folder) for s in news(core, Saved)] == [(2, "/checkpoints/s1-step-2")]
    assert core.state.saved is not None
    assert core.state.saved.step == 2


def test_save_that_fails_is_told_and_the_job_goes_on_with_the_checkpoint_before() -> None:
    core = job(every=2)
    for _ in range(3):
        step(core)
    core.boundary()
    core.pending.clear()
    core.post(OpFailed(endpoint="d0.0", op="save s1", error="a stale failure"))
    assert phase(core) is Saving
    core.post(OpFailed(endpoint="d0.0", op="save s2", error="no space is left"))
    assert core.releases == 5
    last = news(core, Saved)[-1]
    assert (last.step, last.folder, last.error) == (4, None, "d0.0: no space is left")
    assert core.state.saved is not None
    assert core.state.saved.step == 2


def test_plan_that_no_transition_leads_to_is_reached_through_a_checkpoint_of_this_boundary() -> None:
    core = revoked(job())
    answer(core, feasible=False)
    assert phase(core) is Saving
    settle_facts(core)
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.fresh
    request = core.asked(RequestPlan)[-1]
    assert isinstance(request, RequestPlan)
    assert not any(request.snapshot.emus.values())
    assert 3 not in request.snapshot.usable
    answer(core)
    assert phase(core) is Waiting
    retired, spawned = core.asked(RetireEndpoints)[-1], core.asked(SpawnDevices)[-1]
    assert isinstance(retired, RetireEndpoints)
    assert isinstance(spawned, SpawnDevices)
    assert set(retired.endpoints) == {"d0.0", "d1.0", "d2.0", "d3.0"}
    assert spawned.devices == (0, 1, 2)
    core.plans = True
    core.settle()
    assert phase(core) is Steady
    (restored,) = news(core, Restored)
    assert (restored.step, restored.repeated_steps) == (2, 0)
    assert core.state.plan.devices <= {0, 1, 2}
    assert set(core.state.endpoint_of.values()) == {"d0.1", "d1.1", "d2.1"}
    release = core.asked(ReleaseBoundary)[-1]
    assert isinstance(release, ReleaseBoundary)
    assert release.release.followed is not None
    assert release.release.followed.epoch == core.state.plan.epoch


def test_job_without_any_plan_waits_with_its_units_and_needs_no_restore_if_a_device_comes_in_time() -> None:
    core = revoked(job(live=True))
    answer(core, nothing=True)
    settle_facts(core)
    answer(core, nothing=True)
    assert phase(core) is Waiting
    assert all(core.state.emus.values())
    core.plans = True
    core.post(PoolChanged(step=2, arriving=(4,), leaving={}))
    core.settle()
    assert phase(core) is Steady
    assert news(core, Restored) == []
    assert len(core.asked(SaveState)) == 1


def test_plan_that_fails_in_a_pool_that_cannot_grow_goes_on_as_it_is_with_its_state_saved() -> None:
    core = revoked(job())
    released = core.releases
    answer(core, nothing=True)
    settle_facts(core)
    answer(core, nothing=True)
    assert phase(core) is Steady
    assert core.releases == released + 1
    assert core.state.saved is not None
    assert core.state.saved.step == core.state.step == 2


def test_step_that_was_lost_is_not_saved_as_if_it_were_a_boundary() -> None:
    core = job(live=True)
    step(core)
    core.plans = False
    core.post(EndpointDied(endpoint="d3.0", during="a step"))
    core.post(StepLost(endpoint="d3.0", during="a step"))
    answer(core, nothing=True)
    assert phase(core) is Waiting
    assert core.asked(SaveState) == []


def kill_all(core: Core) -> None:
    """Every process dies in a step."""
    for endpoint in sorted(core.state.endpoint_of.values()):
        core.post(EndpointDied(endpoint=endpoint, during="a step"))
    core.post(StepLost(endpoint="d0.0", during="a step"))


def test_steps_since_the_checkpoint_are_run_again_and_boundaries_of_before_are_not_taken_for_new_ones() -> None:
    core = job(every=2)
    for _ in range(3):
        step(core)
    kill_all(core)
    core.settle()
    (restored,) = news(core, Restored)
    assert (restored.step, restored.repeated_steps, core.state.step) == (2, 1, 2)
    released, epoch = core.releases, core.state.plan.epoch
    # The loop asks again what it asked before it was told to go back: it is told once more.
    core.post(BoundaryReached(report=report(core.state, 3, 6.0)))
    assert core.state.step == 2
    assert core.releases == released + 1
    core.post(BoundaryReached(report=report(core.state, 3, 6.0), followed=epoch))
    core.settle()
    assert core.state.step == 3
    assert core.state.followed is None


def test_job_goes_back_to_one_checkpoint_a_few_times_and_then_says_so() -> None:
    core = job(every=1)
    step(core)
    for _ in range(MAX_RESTARTS):
        kill_all(core)
        core.settle()
        assert phase(core) is Steady
    kill_all(core)
    assert isinstance(core.state.phase, Stopped)
    assert f"gone back to one checkpoint {MAX_RESTARTS} times" in core.state.phase.reason
    assert "--resume /checkpoints/s1-step-1` goes on after step 1" in core.state.phase.reason


def test_device_that_goes_while_units_are_read_begins_the_restore_again() -> None:
    core = job(every=1)
    step(core)
    kill_all(core)
    while phase(core) is not Restoring:
        core.post(core.pending.pop(0))
    (first,) = core.asked(RestoreState)
    core.pending.clear()
    core.post(EndpointDied(endpoint="d0.1", during="restore"))
    assert phase(core) is Waiting
    core.settle()
    assert phase(core) is Steady
    second = core.asked(RestoreState)[-1]
    assert isinstance(first, RestoreState)
    assert isinstance(second, RestoreState)
    assert second.epoch > first.epoch
    assert "d0.2" in core.state.endpoint_of.values()


def test_run_goes_on_from_the_checkpoint_of_another_and_keeps_its_declared_plan_if_it_does_not_adapt() -> None:
    first = job(every=1)
    step(first)
    assert first.state.saved is not None
    config = replace(first.state.config, policy=first.state.config.policy.model_copy(update={"adapt": False}))
    core = Core(config)
    core.post(JobStarted(devices=(0, 1, 2, 3), checkpoint=first.state.saved))
    core.settle()
    assert phase(core) is Steady
    assert core.asked(RequestPlan) == []
    assert dict(core.state.plan.stages) == dict(config.first)
    assert core.state.step == 1
    release = core.asked(ReleaseBoundary)[-1]
    assert isinstance(release, ReleaseBoundary)
    assert release.release.followed is not None


def test_run_that_goes_on_from_a_checkpoint_compares_lengths_with_what_it_expects() -> None:
    """There is no report yet; against a mean of nothing no length would ever differ."""
    first = job(every=1)
    step(first)
    core = Core(first.state.config)
    core.post(JobStarted(devices=(0, 1, 2, 3), checkpoint=first.state.saved))
    core.settle()
    assert phase(core) is Steady
    assert core.state.reference is not None
    assert core.state.reference.response_tokens == core.state.mean_tokens > 0


def test_crossings_of_steps_that_are_run_again_are_as_far_back_as_they_were() -> None:
    core = job(every=2)
    for _ in range(3):
        step(core)
    kill_all(core)
    assert core.state.step == 3
    core.settle()
    assert core.state.step == 2
    assert all(last <= core.state.step for last in core.state.horizons.last_step.values())


def test_abort_while_a_checkpoint_is_restored_is_refused() -> None:
    core = job(every=1)
    step(core)
    kill_all(core)
    while phase(core) is not Transitioning:
        core.post(core.pending.pop(0))
    before = core.state.num_restarts
    core.post(OperatorAsked(command="a", verb=Verb.ABORT))
    (told,) = news(core, Answered)
    assert not told.done
    assert "checkpoint" in told.reason
    assert phase(core) is Transitioning
    assert core.state.num_restarts == before
    core.settle()
    assert phase(core) is Steady


def test_reason_why_no_plan_was_found_outlives_the_save() -> None:
    """A pool that cannot grow, of which half goes: the job stops, and says what the planner said."""
    core = revoked(job())
    settle_facts(core)
    core.post(OpFailed(endpoint="planner", op="propose", error="it ran out of ideas"))
    assert isinstance(core.state.phase, Saving)
    assert "it ran out of ideas" in core.state.phase.why


def test_operator_who_pauses_while_the_job_starts_anew_holds_it_where_it_went_back_to() -> None:
    core = job(every=1)
    step(core)
    released = core.releases
    kill_all(core)
    core.post(OperatorAsked(command="x", verb=Verb.PAUSE))
    core.settle()
    assert phase(core) is Paused
    assert core.releases == released
    core.post(OperatorAsked(command="y", verb=Verb.RESUME))
    assert core.releases == released + 1
    assert phase(core) is Steady


@pytest.mark.parametrize("first", ["death", "notice"])
def test_unit_that_is_lost_in_a_save_is_recovered_from_and_the_save_is_dropped(first: str) -> None:
    core = job(every=1)
    core.boundary()
    assert phase(core) is Saving
    core.plans = True
    if first == "death":
        core.post(EndpointDied(endpoint="d3.0", during="save s1"))
    else:
        core.post(PoolChanged(step=1, arriving=(), leaving={}, gone=(3,)))
    core.pending = [fact for fact in core.pending if getattr(fact, "endpoint", "") != "d3.0"]
    core.settle()
    assert phase(core) is Steady
    assert core.state.saved is None
    assert 3 not in core.state.plan.devices
    assert not isinstance(core.state.phase, Transitioning)
