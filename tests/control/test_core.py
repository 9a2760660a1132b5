"""The decision core, one event at a time: triggers, verdicts, the wait at the boundary, and what is stale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from nereus.control.allowed import ALLOWED
from nereus.control.core import _check_change
from nereus.control.effects import (
    BindUnits,
    InstallPrograms,
    QuiesceUnits,
    ReleaseBoundary,
    RequestPlan,
    RetireEndpoints,
    RunOp,
    SpawnDevices,
    TakeDigests,
)
from nereus.control.events import (
    Committed,
    DeviceFailed,
    DeviceReady,
    DigestsTaken,
    EndpointDied,
    Event,
    Installed,
    JobStarted,
    OpCompleted,
    OpFailed,
    PlanReady,
    PoolChanged,
    Quiesced,
    ReplanRequested,
    StepLost,
)
from nereus.control.phases import (
    Admitted,
    Idle,
    Joining,
    Phase,
    Planning,
    Starting,
    Steady,
    Stopped,
    Transitioning,
)
from nereus.control.regrouping import MAX_REGROUPS
from nereus.errors import NereusError
from nereus.planner.native import NativePricing
from nereus.planner.pricing import Pricing
from nereus.policy.admission import Code
from nereus.policy.horizon import Signal
from nereus.spec.stages import ACTOR_TRAINING
from tests.control.harness import Core, with_proposals
from tests.runtime.loop import adaptive_config, adaptive_job, choice, scripted_config, small_config

FOUR, EIGHT = range(4), range(8)


def steady(num_devices: int = 4, **policy: Any) -> Core:
    """A job in its second step: devices are ready, and one boundary without news is behind."""
    core = Core(adaptive_config(**policy)).start(range(num_devices))
    core.boundary()
    core.settle()
    assert isinstance(core.state.phase, Steady)
    return core


def planning(core: Core, tokens: float = 12.0) -> PlanReady:
    """Make the lengths cross, and hand back the planner's answer before it is delivered."""
    core.boundary(tokens)
    (answer,) = core.pending
    core.pending.clear()
    assert isinstance(answer, PlanReady)
    assert isinstance(core.state.phase, Planning)
    return answer


def with_caps(pricing: Pricing, corners: list[dict[str, int]]) -> NativePricing:
    """The same pricing with another curriculum of response caps."""
    assert isinstance(pricing, NativePricing)
    workload = pricing.job.workload
    changed = type(workload).model_validate({**workload.model_dump(), "response_cap": corners})
    return replace(pricing, job=pricing.job.model_copy(update={"workload": changed}))


def notice(core: Core, *devices: int, at: int) -> None:
    core.post(PoolChanged(step=core.state.step + 1, arriving=(), leaving=dict.fromkeys(devices, at)))


# --- phases ------------------------------------------------------------------------------------------------------------


def test_table_has_a_row_for_every_phase_and_a_reason_for_every_edge() -> None:
    assert set(ALLOWED) == set(get_args(Phase))
    for row in ALLOWED.values():
        assert set(row) <= set(get_args(Phase))
        assert all(reason for reason in row.values())
    assert ALLOWED[Stopped] == {}


@pytest.mark.parametrize("before", get_args(Phase), ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("after", get_args(Phase), ids=lambda phase: phase.__name__)
def test_change_of_phase_that_is_not_in_the_table_raises(before: type[Phase], after: type[Phase]) -> None:
    # Neither is looked into: only the types count.
    old, new = object.__new__(before), object.__new__(after)
    if before is after or after in ALLOWED[before]:
        _check_change(old, new)
    else:
        with pytest.raises(NereusError, match=f"phase {before.__name__} cannot become {after.__name__}"):
            _check_change(old, new)


def test_job_that_starts_waits_for_devices_programs_units_and_the_commit() -> None:
    core = Core(adaptive_config())
    assert isinstance(core.state.phase, Idle)
    core.start(FOUR)
    assert isinstance(core.state.phase, Steady)
    assert core.releases == 1
    assert core.state.usable == (0, 1, 2, 3)


# --- triggers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "crosses"), [(7.8, False), (7.9, True), (4.2, False), (4.1, True)])
def test_length_crosses_beyond_thirty_percent_of_its_reference(tokens: float, crosses: bool) -> None:
    core = steady()
    core.boundary(tokens)
    assert isinstance(core.state.phase, Planning) is crosses


def test_reference_is_reset_by_a_replan_that_is_rejected() -> None:
    core = steady()
    core.post(with_proposals(planning(core, 12.0), l_step_s=1e9, infeasible=None))
    assert core.decisions[-1].verdict.code is Code.REJECTED_NO_GAIN
    assert isinstance(core.state.phase, Steady)
    core.boundary(12.0)
    assert isinstance(core.state.phase, Steady)
    core.boundary(16.0)
    assert isinstance(core.state.phase, Planning)


def test_horizon_is_one_step_first_and_then_the_average_interval_between_crossings() -> None:
    core = steady()
    horizons = []
    for wait, tokens in ((0, 12.0), (3, 24.0), (1, 48.0)):
        for _ in range(wait):
            core.boundary(core.state.reference.response_tokens)  # type: ignore[union-attr]
            core.settle()
        answer = planning(core, tokens)
        assert isinstance(core.state.phase, Planning)
        horizons.append(core.state.phase.horizon_steps)
        core.post(with_proposals(answer, l_step_s=1e9, infeasible=None))
    assert horizons == [1.0, 4.0, 3.0]  # first; the interval 4; half of 4 and half of 2


def test_nothing_triggers_when_the_plan_may_not_adapt() -> None:
    core = Core(small_config(adaptive_job(adapt=False))).start(FOUR)
    for tokens in (6.0, 60.0, 600.0):
        (effect,) = core.boundary(tokens)
        assert isinstance(effect, ReleaseBoundary)


def test_devices_that_arrive_are_started_and_trigger_when_all_are_ready() -> None:
    core = steady()
    (effect,) = core.post(PoolChanged(step=2, arriving=(4, 5, 6, 7), leaving={}))
    assert effect == SpawnDevices(devices=(4, 5, 6, 7))
    core.post(core.pending.pop(0))
    core.boundary()
    assert isinstance(core.state.phase, Steady)
    core.settle()
    core.boundary()
    assert isinstance(core.state.phase, Planning)
    assert [trigger.signal for trigger in core.state.phase.triggers] == [Signal.POOL]
    assert not core.state.phase.is_urgent


# --- verdicts ----------------------------------------------------------------------------------------------------------


def test_candidate_that_pays_within_gamma_of_the_horizon_is_admitted_and_one_that_does_not_is_rejected() -> None:
    for l_tran_s, code in ((0.49, Code.ADMITTED), (0.51, Code.REJECTED_PAYBACK)):
        core = steady()
        answer = planning(core)
        target = answer.current_l_step_s - 1.0
        core.post(with_proposals(answer, l_step_s=target, l_tran_s=l_tran_s, infeasible=None))
        verdict = core.decisions[-1].verdict
        assert verdict.code is code
        assert (verdict.delta_l_s, verdict.l_tran_s) == (pytest.approx(1.0), l_tran_s)
        assert (verdict.gamma, verdict.horizon_steps) == (0.5, 1.0)
        assert isinstance(core.state.phase, Admitted if code is Code.ADMITTED else Steady)


def test_gamma_zero_admits_urgent_transitions_only() -> None:
    core = steady(gamma=0)
    answer = planning(core)
    core.post(with_proposals(answer, l_step_s=0.0, l_tran_s=0.0, infeasible=None))
    assert core.decisions[-1].verdict.code is Code.REJECTED_PAYBACK
    notice(core, 3, at=4)
    core.boundary(12.0)
    core.settle()
    assert core.decisions[-1].verdict.code is Code.ADMITTED_URGENT


def test_urgent_path_waives_payback() -> None:
    core = steady()
    notice(core, 3, at=4)
    core.boundary()
    (answer,) = core.pending
    assert isinstance(answer, PlanReady)
    core.pending.clear()
    core.post(with_proposals(answer, l_step_s=1e9, l_tran_s=1e9, infeasible=None))
    assert core.decisions[-1].verdict.code is Code.ADMITTED_URGENT


def test_device_that_leaves_is_urgent_only_if_the_plan_uses_it() -> None:
    core = steady(num_devices=8)
    notice(core, 7, at=4)
    core.boundary()
    assert isinstance(core.state.phase, Planning)
    assert not core.state.phase.is_urgent
    core = steady()
    notice(core, 3, at=4)
    core.boundary()
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.is_urgent


def test_infeasible_candidate_is_told_and_the_next_one_is_tried() -> None:
    core = steady()
    answer = planning(core)
    good = replace(answer.proposals[0], l_step_s=0.0, l_tran_s=0.0, infeasible=None)
    bad = replace(good, infeasible=(Code.INFEASIBLE_MEMORY, "it does not fit"))
    core.post(replace(answer, proposals=(bad, good)))
    assert [d.verdict.code for d in core.decisions] == [Code.INFEASIBLE_MEMORY, Code.ADMITTED]
    assert core.decisions[0].verdict.reason == "it does not fit"


# --- the wait at the boundary ------------------------------------------------------------------------------------------


def test_loop_goes_on_while_the_planner_works() -> None:
    core = steady()
    core.plans = False
    kinds = [type(effect) for effect in core.boundary(12.0)]
    assert kinds == [RequestPlan, ReleaseBoundary]
    assert [type(effect) for effect in core.boundary(12.0)] == [ReleaseBoundary]


def test_boundary_is_held_when_the_notice_would_run_out_in_the_next_step() -> None:
    core = steady()
    core.plans = False
    notice(core, 3, at=4)
    assert ReleaseBoundary in [type(effect) for effect in core.boundary()]  # after step 2
    assert ReleaseBoundary not in [type(effect) for effect in core.boundary()]  # after step 3
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.holding


def test_held_boundary_is_released_after_the_commit_on_devices_that_stay() -> None:
    core = steady()
    core.plans = False
    notice(core, 3, at=3)
    core.boundary()
    before = core.releases
    core.plans = True
    core.pending += core.facts(core.asked(RequestPlan)[-1])
    core.settle()
    assert core.releases == before + 1
    assert 3 not in core.state.plan.devices
    assert core.asked(RetireEndpoints) == [RetireEndpoints(endpoints=("d3.0",))]


def test_boundary_is_held_when_the_next_step_is_predicted_not_to_fit() -> None:
    core = steady()
    core.plans = False
    corners = [{"step": 2, "tokens": 6}, {"step": 3, "tokens": 600}]
    core.state = replace(core.state, learnt=with_caps(core.state.pricing, corners))
    kinds = [type(effect) for effect in core.boundary()]
    assert kinds == [RequestPlan]
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.triggers[0].signal is Signal.MEMORY
    assert core.state.phase.holding


def test_admitted_plan_is_carried_out_at_the_next_boundary_and_the_loop_waits_for_its_commit() -> None:
    core = steady()
    core.post(PoolChanged(step=2, arriving=(4, 5, 6, 7), leaving={}))
    core.settle()
    answer = planning(core, 6.0)
    core.post(with_proposals(answer, l_step_s=0.0, l_tran_s=0.1, infeasible=None))
    before = core.releases
    (effect,) = core.boundary()
    assert isinstance(effect, QuiesceUnits)
    assert isinstance(core.state.phase, Transitioning)
    assert core.releases == before
    core.settle()
    assert core.releases == before + 1
    assert core.state.plan.epoch == 1
    assert core.state.plan.devices == set(EIGHT)


def test_plan_whose_pool_has_changed_before_the_boundary_is_replanned_and_not_carried_out() -> None:
    core = steady(num_devices=8)
    answer = planning(core, 12.0)
    core.post(with_proposals(answer, l_step_s=0.0, l_tran_s=0.1, infeasible=None))
    assert isinstance(core.state.phase, Admitted)
    notice(core, 6, 7, at=9)
    kinds = [type(effect) for effect in core.boundary(12.0)]
    assert QuiesceUnits not in kinds
    assert RequestPlan in kinds
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.usable == (0, 1, 2, 3, 4, 5)


def test_pool_that_changes_while_the_planner_works_is_seen_at_the_boundary_after_the_answer() -> None:
    core = steady()
    answer = planning(core, 12.0)
    notice(core, 3, at=5)
    core.post(with_proposals(answer, l_step_s=0.0, l_tran_s=0.1, infeasible=None))
    core.boundary(12.0)
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.is_urgent


def test_notice_that_comes_while_a_slow_planner_works_does_not_run_out_unseen() -> None:
    core = steady()
    planning(core, 12.0)  # its answer takes longer than the notice
    core.plans = False
    notice(core, 3, at=5)
    core.boundary(12.0)
    effects = core.boundary(12.0)  # after step 4: device 3 is gone after step 5
    assert ReleaseBoundary not in [type(effect) for effect in effects]


# --- what is stale -----------------------------------------------------------------------------------------------------


def test_answer_to_an_older_request_is_ignored() -> None:
    core = steady()
    answer = planning(core)
    state = core.state
    assert core.post(replace(answer, cycle=answer.cycle - 1)) == ()
    assert core.state == state
    core.post(answer)
    after = core.state
    assert core.post(answer) == ()
    assert core.state == after


STALE: tuple[Event, ...] = (
    OpCompleted(endpoint="d0.0", op="e0.0.Split", bytes_received=9, seconds=1.0),
    Quiesced(endpoint="d0.0", epoch=0),
    Installed(endpoint="d0.0", epoch=0, setup_s=9.0, groups_made=9, groups_reused=9),
    Committed(endpoint="d0.0", epoch=0, peak_bytes=9),
    DigestsTaken(endpoint="d0.0", tag="e0.before", digests=()),
)


@pytest.mark.parametrize("event", STALE, ids=lambda event: type(event).__name__)
def test_fact_that_belongs_to_nothing_in_progress_changes_nothing(event: Event) -> None:
    core = Core(scripted_config({"step": 1, "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}})).start(range(6))
    before = core.state
    assert core.post(event) == ()
    assert core.state == before
    core.boundary()
    seen = set()
    while core.pending:
        assert isinstance(core.state.phase, Transitioning)
        seen.add(core.state.phase.carrying.leg)
        before = core.state
        assert core.post(event) == ()
        assert core.state == before
        core.post(core.pending.pop(0))
    assert len(seen) == 6
    assert core.state.plan.epoch == 1


def test_fact_that_comes_twice_counts_once() -> None:
    script = {"step": 1, "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}}
    once, twice = (Core(scripted_config(script)).start(range(6)) for _ in range(2))
    for core, times in ((once, 1), (twice, 2)):
        core.boundary()
        while core.pending:
            event = core.pending.pop(0)
            for _ in range(times):
                core.post(event)
    for kind in (QuiesceUnits, TakeDigests, InstallPrograms, RunOp, BindUnits, ReleaseBoundary):
        assert len(once.asked(kind)) == len(twice.asked(kind))
    assert once.state.emus == twice.state.emus


def test_figures_of_a_fact_that_comes_twice_count_once() -> None:
    script = {"step": 1, "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}}
    outcomes = []
    for times in (1, 2):
        core = Core(scripted_config(script)).start(range(6))
        core.boundary()
        while core.pending:
            event = core.pending.pop(0)
            for _ in range(times):
                core.post(event)
        outcomes.append({name: core.records[0].outcome[name] for name in ("bytes_moved", "groups_made")})
    assert outcomes[0] == outcomes[1]


def test_start_counts_a_fact_that_comes_twice_once() -> None:
    core = Core(scripted_config())
    core.post(JobStarted(devices=tuple(range(6))))
    while core.pending:
        event = core.pending.pop(0)
        core.post(event)
        core.post(event)
    assert [type(e).__name__ for e in core.effects if type(e).__name__ != "Publish"] == [
        "SpawnDevices",
        "InstallPrograms",
        "SeedUnits",
        "BindUnits",
        "ReleaseBoundary",
    ]


# --- an operator -------------------------------------------------------------------------------------------------------


def test_dry_run_decides_and_changes_nothing() -> None:
    core = steady()
    core.post(PoolChanged(step=2, arriving=(4, 5, 6, 7), leaving={}))
    core.settle()
    core.post(ReplanRequested(command="a", dry_run=True, forced=True))
    core.settle()
    assert core.decisions
    assert all(decision.is_dry_run for decision in core.decisions if decision.command == "a")
    assert not any(decision.is_dry_run for decision in core.decisions if decision.command is None)
    assert isinstance(core.state.phase, Steady)
    assert core.state.plan.epoch == 0
    core.boundary()
    assert not core.asked(QuiesceUnits)


def test_dry_run_leaves_the_references_as_they_are() -> None:
    core = steady()
    core.post(PoolChanged(step=2, arriving=(4, 5, 6, 7), leaving={}))
    core.settle()
    reference = core.state.reference
    core.post(ReplanRequested(command="a", dry_run=True, forced=False))
    core.settle()
    assert core.state.reference == reference
    core.boundary()
    assert isinstance(core.state.phase, Planning)


def test_forced_replan_carries_out_the_best_feasible_plan_even_if_it_does_not_pay() -> None:
    core = steady()
    core.plans = False
    core.post(ReplanRequested(command="a", dry_run=False, forced=True))
    core.plans = True
    (answer,) = core.facts(core.asked(RequestPlan)[-1])
    assert isinstance(answer, PlanReady)
    core.post(with_proposals(answer, l_step_s=1e9, l_tran_s=1e9, infeasible=None))
    assert core.decisions[-1].verdict.is_admitted
    core.boundary()
    core.settle()
    assert core.state.plan.epoch == 1


def test_replan_that_is_not_forced_must_pay() -> None:
    core = steady()
    core.plans = False
    core.post(ReplanRequested(command="a", dry_run=False, forced=False))
    core.plans = True
    (answer,) = core.facts(core.asked(RequestPlan)[-1])
    assert isinstance(answer, PlanReady)
    core.post(with_proposals(answer, l_step_s=1e9, l_tran_s=1e9, infeasible=None))
    assert not core.decisions[-1].verdict.is_admitted


def test_replan_does_not_count_as_a_crossing() -> None:
    core = steady()
    core.post(ReplanRequested(command="a", dry_run=True, forced=False))
    assert core.state.horizons.last_step == {}


@pytest.mark.parametrize("answered", [True, False])
def test_scripted_transition_that_lets_a_device_join_comes_before_an_operators_replan(answered: bool) -> None:
    script = {"step": 2, "join": "6", "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}}
    core = Core(scripted_config(script)).start(range(6))
    core.boundary()
    core.post(ReplanRequested(command="a", dry_run=False, forced=True))
    if answered:
        core.settle()
    core.pending.clear()
    core.boundary()
    assert isinstance(core.state.phase, Joining)


# --- deaths ------------------------------------------------------------------------------------------------------------


def test_endpoint_that_dies_with_a_replica_is_planned_around() -> None:
    core = steady(num_devices=8)
    core.post(EndpointDied(endpoint="d3.0", during="a step"))
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.is_urgent
    core.post(StepLost(endpoint="d3.0", during="a step"))
    core.settle()
    assert isinstance(core.state.phase, Steady)
    assert 3 not in core.state.plan.devices
    assert {e for emu in core.state.bound for e in emu.endpoints} <= set(core.state.endpoint_of.values())


def test_endpoint_that_dies_with_the_last_copy_stops_the_job() -> None:
    core = Core(scripted_config()).start(range(6))
    core.boundary(step_number=5)
    core.post(EndpointDied(endpoint="d0.0", during="a step"))
    assert isinstance(core.state.phase, Stopped)
    assert core.stop is not None
    assert ACTOR_TRAINING in core.stop


def test_endpoint_that_dies_with_the_only_copy_of_a_part_of_the_optimizer_state_stops_the_job() -> None:
    """Under ZeRO-1 each replica has a part of its own: the replicas that are left do not hold all of the state."""
    config = adaptive_config()
    first = {name: replace(plan, zero1=name == ACTOR_TRAINING) for name, plan in config.first.items()}
    assert first[ACTOR_TRAINING].dp > 1
    core = Core(replace(config, first=first)).start(EIGHT)
    core.boundary()
    core.settle()
    endpoint = core.state.endpoint_of[first[ACTOR_TRAINING].devices[0]]
    core.post(EndpointDied(endpoint=endpoint, during="a step"))
    assert isinstance(core.state.phase, Stopped)
    assert ACTOR_TRAINING in (core.stop or "")


def test_lost_step_after_the_answer_carries_out_the_admitted_plan() -> None:
    core = steady(num_devices=8)
    core.post(EndpointDied(endpoint="d3.0", during="a step"))
    core.settle()
    before = core.releases
    core.post(StepLost(endpoint="d3.0", during="a step"))
    core.settle()
    assert core.releases == before + 1
    assert 3 not in core.state.plan.devices


def test_boundary_is_held_while_units_are_gone() -> None:
    core = steady(num_devices=8)
    core.plans = False
    core.post(EndpointDied(endpoint="d3.0", during="nothing"))
    assert ReleaseBoundary not in [type(effect) for effect in core.boundary()]


def test_device_that_fails_to_start_is_retired_and_the_pool_may_grow_without_it() -> None:
    core = steady()
    core.post(PoolChanged(step=2, arriving=(4, 5), leaving={}))
    core.pending.clear()
    (retired,) = core.post(DeviceFailed(device=5, endpoint="d5.0", reason="it died"))
    assert retired == RetireEndpoints(endpoints=("d5.0",))
    core.post(DeviceReady(device=4, endpoint="d4.0", peak_flops=1e10))
    core.boundary()
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.usable == (0, 1, 2, 3, 4)


def test_device_that_a_script_waits_for_and_that_fails_to_start_stops_the_job() -> None:
    script = {"step": 2, "join": "6", "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}}
    core = Core(scripted_config(script)).start(range(6))
    core.boundary()
    core.boundary()
    assert isinstance(core.state.phase, Joining)
    core.post(DeviceFailed(device=6, endpoint="d6.0", reason="no such accelerator"))
    assert core.stop == "device 6, which the job file lets join, did not start: no such accelerator"


def test_device_of_the_start_that_fails_stops_the_job() -> None:
    core = Core(adaptive_config())
    core.post(JobStarted(devices=(0, 1, 2, 3)))
    core.post(DeviceFailed(device=2, endpoint="d2.0", reason="it died"))
    assert core.stop == "device 2 did not start: it died"


def test_device_of_the_new_plan_that_dies_while_the_boundary_is_held_is_planned_around() -> None:
    core = steady(num_devices=8)
    core.plans = False
    notice(core, 3, at=3)
    core.boundary()
    assert isinstance(core.state.phase, Planning)
    assert core.state.phase.holding
    core.plans = True
    (answer,) = core.facts(core.asked(RequestPlan)[-1])
    assert isinstance(answer, PlanReady)
    first = next(p for p in answer.proposals if p.infeasible is None)
    new = max(device for stage in first.stages.values() for device in stage.devices)
    assert new not in core.state.plan.devices
    core.post(EndpointDied(endpoint=f"d{new}.0", during="nothing"))
    core.post(answer)
    core.settle()
    assert not {3, new} & core.state.plan.devices


def test_failure_that_comes_again_and_again_stops_with_the_operation_and_the_cause() -> None:
    core = Core(scripted_config()).start(range(6))
    core.boundary()
    for epoch in range(1, MAX_REGROUPS + 2):
        while core.asked(InstallPrograms)[-1].programs[0].epoch != epoch:  # type: ignore[attr-defined]
            core.post(core.pending.pop(0))
        core.pending.clear()
        core.post(OpFailed(endpoint="d1.0", op=f"install e{epoch}", error="the disk is on fire"))
    core.settle()
    assert core.stop is not None
    assert core.stop.startswith("transition to epoch 5: install e5 failed on d1.0: the disk is on fire; 5 transitions")
    assert isinstance(core.state.phase, Stopped)


def test_failure_of_a_call_of_an_earlier_transition_is_stale() -> None:
    core = Core(scripted_config()).start(range(6))
    core.boundary()
    before = core.state
    for late in ("install e0", "digest e0.after", "bind e0", "e0.sync"):
        core.post(OpFailed(endpoint="d1.0", op=late, error="it was aborted"))
    assert core.state == before


def test_starting_phase_names_what_it_waits_for() -> None:
    core = Core(adaptive_config())
    core.post(JobStarted(devices=(0, 1, 2, 3)))
    assert core.state.phase == Starting(devices=frozenset(FOUR))
