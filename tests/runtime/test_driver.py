"""The Driver on a scripted job: what starts, what boundaries do, what a failure leaves, and what a second question gets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nereus.control.effects import DevicesChanged, Started
from nereus.control.events import BoundaryReached, EndpointDied, JobStarted, OpCompleted
from nereus.control.phases import Steady, Stopped
from nereus.control.programs import MAX_SPARE_GROUPS
from nereus.emu.groups import compute_groups
from nereus.layout.dense import NORM, layer_name
from nereus.layout.tensors import Kind, TensorRef
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.transition.collectives import COMPUTE, TRANSFER, GroupKey
from nereus.transition.ops import Op, Program
from tests.runtime.loop import FIRST, SCRIPT, Loop, choice, scripted_config
from tests.runtime.serving import check_serving, emus_of, interruptions, records
from tests.runtime.world import PEAK_BYTES, SETUP_S, Call, Faults, World, received_bytes

CUT = TensorRef(layer_name(1, "mlp.up_proj"), Kind.PARAMETER)
MOMENT = TensorRef(layer_name(2, "self_attn.o_proj"), Kind.EXP_AVG_SQ)
COUNTER = TensorRef("updates", Kind.SCALAR)

MakeLoop = Callable[..., Loop]


@pytest.fixture
def make_loop(tmp_path: Path) -> MakeLoop:
    """A loop of SCRIPT, or of the entries given, whose facts come in an order of their own with `seed`."""

    def make(*script: dict[str, Any], faults: Faults | None = None, seed: int | None = None) -> Loop:
        order = None if seed is None else Random(seed)
        world = World(scripted_config(*script), faults=faults, order=order)
        return Loop(world, tmp_path / "journal.sqlite", order=order)

    return make


def verbs(loop: Loop, *left_out: str) -> list[str]:
    return [entry.verb for entry in loop.world.log if isinstance(entry, Call) and entry.verb not in left_out]


def test_start_spawns_installs_seeds_and_binds_in_this_order(make_loop: MakeLoop) -> None:
    loop = make_loop()
    release = loop.begin()
    assert verbs(loop) == ["spawn", *["install"] * 6, "seed", "bind"]
    assert loop.world.calls("spawn") == [(0, 1, 2, 3, 4, 5)]
    ((epoch, _, endpoints, _),) = loop.world.calls("bind")  # type: ignore[misc]
    assert (epoch, sorted(endpoints)) == (0, [f"d{device}.0" for device in range(6)])  # type: ignore[has-type]
    assert release is not None
    assert {name: len(emus) for name, emus in release.emus.items()} == {name: c["dp"] for name, c in FIRST.items()}
    check_serving(loop, release)


def test_start_keeps_the_devices_in_the_order_of_the_file_and_the_micro_batch(tmp_path: Path) -> None:
    plan = {**FIRST, ACTOR_TRAINING: choice(2, 1, 2, "3,1,0,2", micro_batch=7)}
    loop = Loop(World(scripted_config(plan=plan)), tmp_path / "journal.sqlite")
    release = loop.begin()
    assert release is not None
    assert release.emus[ACTOR_TRAINING][0].endpoints == ("d3.0", "d1.0")
    assert release.plan.stages[ACTOR_TRAINING].devices == (3, 1, 0, 2)
    assert release.plan.stages[ACTOR_TRAINING].micro_batch == 7


def test_boundary_without_an_entry_releases_the_same_units_and_calls_nothing(make_loop: MakeLoop) -> None:
    loop = make_loop()
    first = loop.begin()
    before = len(loop.world.log)
    assert loop.boundary(5) == first
    assert len(loop.world.log) == before
    assert records(loop) == []


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
def test_script_of_all_primitives_joins_and_leaves_keeps_state_and_sync_exact(make_loop: MakeLoop, seed: int | None) -> None:
    loop = make_loop(seed=seed)
    check_serving(loop, loop.begin())
    for step in range(1, 10):
        check_serving(loop, loop.boundary(step))
        present = set(range(6)) | {3: {6, 7}, 6: {6}, 8: {7}, 9: {7}}.get(step, set())
        assert {int(e[1:].partition(".")[0]) for e in loop.world.endpoints} == present
        assert set(loop.state.endpoint_of) == present
    done = records(loop)
    assert set().union(*(change.primitives for change in done)) == {"Split", "Merge", "Extend", "Destroy"}
    assert [change.step for change in done] == [1, 2, 3, 4, 6, 7, 8]
    assert [change.epoch for change in done] == [1, 2, 3, 4, 5, 6, 7]
    assert all(change.outcome["digest_equal"] for change in done)
    assert loop.last is not None
    assert loop.last.epoch == 7


def test_record_says_who_joined_and_left_and_on_which_plan_the_job_goes_on(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.begin()
    releases = [loop.boundary(step) for step in (1, 2, 3, 4)]
    done = records(loop)
    assert [(change.joined, change.left) for change in done] == [((), ()), ((), ()), ((6, 7), ()), ((), (6, 7))]
    assert [change.plan for change in done] == [release and release.plan for release in releases]


def test_device_that_comes_back_is_another_endpoint(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.run(7)
    assert loop.world.calls("spawn") == [(0, 1, 2, 3, 4, 5), (6, 7), (6,)]
    assert loop.world.calls("retire") == [("d6.0", "d7.0"), ("d6.1",)]


def test_joining_devices_start_before_the_transition_and_leaving_ones_end_after_its_commit(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.run(2)
    for step, first, last in ((3, "spawn", "bind"), (4, "quiesce", "retire")):
        began = len(verbs(loop))
        loop.boundary(step)
        assert (verbs(loop)[began], verbs(loop)[-1]) == (first, last)


def test_stage_that_the_script_does_not_name_keeps_its_units(make_loop: MakeLoop) -> None:
    loop = make_loop()
    first, second = loop.begin(), loop.boundary(1)
    assert first is not None
    assert second is not None
    assert second.emus[REFERENCE_INFERENCE] == first.emus[REFERENCE_INFERENCE]
    assert second.emus[ACTOR_GENERATION] == first.emus[ACTOR_GENERATION]
    assert not set(second.emus[ACTOR_TRAINING]) & set(first.emus[ACTOR_TRAINING])


@pytest.mark.parametrize("seed", range(4))
def test_operation_starts_when_its_predecessors_have_completed_on_all_members(make_loop: MakeLoop, seed: int) -> None:
    loop = make_loop(seed=seed)
    loop.run(9)
    missing = {op.id: set(op.members) for op in loop.world.calls("run") if isinstance(op, Op)}
    started: list[str] = []
    for entry in loop.world.log:
        if isinstance(entry, OpCompleted):
            missing[entry.op].discard(entry.endpoint)
        if isinstance(entry, Call) and entry.verb == "run":
            assert isinstance(entry.about, Op)
            assert [name for name in entry.about.after if missing[name]] == []
            started.append(entry.about.id)
    assert len(started) == len(set(started)) > 10
    assert not any(missing.values())


def test_every_endpoint_installs_before_anything_moves_and_binds_at_the_end(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.run(2)
    before = len(loop.world.log)
    loop.boundary(3)
    calls = [entry for entry in loop.world.log[before:] if isinstance(entry, Call)]
    assert [call.verb for call in calls if call.verb != "run"] == [
        "spawn",
        "quiesce",
        "digest",
        *["install"] * 8,
        "digest",
        "bind",
    ]
    installed = {call.about.endpoint: call.about for call in calls if isinstance(call.about, Program)}
    assert sorted(installed) == [f"d{device}.0" for device in range(8)]
    for op in (call.about for call in calls if isinstance(call.about, Op)):
        for endpoint in op.members:
            assert op.seen_by(endpoint) in installed[endpoint].ops
    epoch, emus, endpoints, _ = calls[-1].about  # type: ignore[misc]
    assert (epoch, sorted(endpoints)) == (3, sorted(installed))  # type: ignore[has-type]
    assert emus == loop.state.bound  # type: ignore[has-type]


def test_digests_are_taken_of_what_changes_before_and_of_all_new_units_after_and_proved_before_the_bind(
    make_loop: MakeLoop,
) -> None:
    loop = make_loop()
    first = loop.begin()
    second = loop.boundary(1)
    assert first is not None
    assert second is not None
    assert loop.world.calls("digest") == [
        ("e1.before", first.emus[ACTOR_TRAINING]),
        ("e1.after", second.emus[ACTOR_TRAINING]),
    ]
    assert verbs(loop, "install", "run", "seed", "spawn") == ["bind", "quiesce", "digest", "digest", "bind"]


def test_held_destroys_run_after_the_proof_and_before_the_commit(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.run(3)
    began = len(verbs(loop, "install"))
    loop.boundary(4)
    assert verbs(loop, "install")[began:] == ["quiesce", "digest", "digest", "run", "run", "run", "bind", "retire"]
    assert records(loop)[-1].primitives == {"Destroy": 3}


def test_devices_join_and_leave_without_a_change_of_any_model_stage(make_loop: MakeLoop) -> None:
    loop = make_loop({"step": 1, "join": "6"}, {"step": 2, "leave": "6"})
    first = loop.begin()
    second, third = loop.boundary(1), loop.boundary(2)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.emus == second.emus == third.emus
    assert [(change.joined, change.left) for change in records(loop)] == [((6,), ()), ((), (6,))]


def test_figures_of_a_record_are_those_of_the_worst_endpoint_or_add_up(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.run(1)
    outcome = records(loop)[0].outcome
    ops = [op for op in loop.world.calls("run") if isinstance(op, Op)]
    exchanges = [exchange for op in ops for exchange in op.exchanges]
    received = sum(received_bytes(x, endpoint) for x in exchanges for endpoint in loop.world.endpoints)
    assert outcome["bytes_moved"] == received == sum(op.num_bytes for op in ops) > 0
    assert outcome["setup_s"] == 6 * SETUP_S
    assert outcome["peak_bytes"] == 6 * PEAK_BYTES
    assert outcome["seconds"] > 0
    assert outcome["l_tran_predicted_s"] > 0
    assert {op["id"]: op["bytes"] for op in outcome["ops"]} == {op.id: op.num_bytes for op in ops}
    groups = sum(len(endpoint.programs[-1].groups) for endpoint in loop.world.endpoints.values())
    assert outcome["groups_made"] + outcome["groups_reused"] == groups


def test_programs_have_the_communicators_of_the_new_plan_which_are_kept_with_the_syncs_and_a_few_spare_ones(
    make_loop: MakeLoop,
) -> None:
    loop = make_loop()
    loop.begin()
    release = loop.boundary(1)
    assert release is not None
    programs = [p for p in loop.world.calls("install") if isinstance(p, Program) and p.epoch == 1]
    members = compute_groups(emus_of(release), loop.world.config.num_kv_heads)
    compute = {GroupKey.of(group, COMPUTE) for group in members}
    for program in programs:
        assert {group for group in compute if program.endpoint in group.members} <= set(program.groups)
    keep = loop.world.calls("bind")[-1][3]  # type: ignore[index]
    sync = {x.group for p in programs for op in p.ops if op.id == release.sync_op for x in op.exchanges}
    spare = {x.group for op in loop.world.calls("run") if isinstance(op, Op) for x in op.exchanges}
    assert keep == compute | sync | spare
    assert all(isinstance(group, GroupKey) and group.lane == TRANSFER for group in sync | spare)
    assert max(Counter(member for group in spare for member in group.members).values()) <= MAX_SPARE_GROUPS


def test_news_tells_the_start_the_devices_the_steps_and_the_transitions_in_order(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.run(4)
    told = [type(news).__name__ for news in loop.news if not isinstance(news, DevicesChanged)]
    assert told == ["JobDescribed", "Started", *["StepReport", "TransitionRecord"] * 4]
    started = next(news for news in loop.news if isinstance(news, Started))
    assert started.plan.epoch == 0
    assert [n for n in loop.news if isinstance(n, DevicesChanged)][-1].ready == {d: f"d{d}.0" for d in range(6)}


# --- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (Faults().fail("d1.0", "digest"), r"transition to epoch 1: digest e1\.before failed on d1\.0: the disk is on fire"),
        (Faults().fail("d5.0", "install"), r"transition to epoch 1: install e1 failed on d5\.0: the disk is on fire"),
        (Faults().fail("d1.0", "Split"), r"transition to epoch 1: e1\.0\.Split failed on d1\.0: the disk is on fire"),
        (Faults().corrupt("Split", CUT), rf"1 tensors are not what they were, first {CUT}"),
        (Faults().corrupt("Split", MOMENT), rf"1 tensors are not what they were, first {MOMENT}"),
        (Faults().corrupt("Split", COUNTER), rf"{COUNTER}"),
        (Faults().corrupt("Split", TensorRef(NORM, Kind.PARAMETER)), rf"{NORM}"),
    ],
    ids=lambda value: "" if isinstance(value, Faults) else value[-40:],
)
def test_transition_that_fails_is_rolled_back_with_the_reason_and_the_job_goes_on(
    make_loop: MakeLoop, faults: Faults, reason: str, seed: int | None
) -> None:
    loop = make_loop(seed=seed)
    first = loop.begin()
    faults = deepcopy(faults)
    loop.world.faults = faults
    release = loop.boundary(1)
    assert first is not None
    assert release is not None
    assert len(faults.fired) == 1
    (ended,) = interruptions(loop)
    assert re.search(reason, ended.reason)
    assert (ended.epoch, ended.end, ended.plan.stages) == (1, "rolled back", first.plan.stages)
    assert release.emus == first.emus
    check_serving(loop, release)
    assert records(loop) == []
    check_serving(loop, loop.boundary(2))
    assert [record.epoch for record in records(loop)] == [3]


@pytest.mark.parametrize(("endpoint", "at"), [("d1.0", "digest"), ("d2.0", "install"), ("d3.0", "Split")])
def test_death_of_the_last_copy_in_a_transition_stops_with_its_name(make_loop: MakeLoop, endpoint: str, at: str) -> None:
    loop = make_loop()
    loop.begin()
    loop.world.faults = Faults().lose(endpoint, at)
    assert loop.boundary(1) is None
    assert loop.world.stopped is not None
    assert loop.world.stopped.startswith(f"endpoint {endpoint} died during {at}")
    assert f"no intact copy of {ACTOR_TRAINING} is left" in loop.world.stopped
    assert isinstance(loop.state.phase, Stopped)


def test_wrong_element_is_told_by_unit_and_tensor(make_loop: MakeLoop) -> None:
    loop = make_loop(faults=Faults().corrupt("Extend", CUT))
    loop.run(3)
    (ended,) = interruptions(loop)
    assert ended.reason.endswith(f"@3: 1 tensors are not what they were, first {CUT}")


def test_replicas_that_differ_before_a_transition_stop_it(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.run(1)
    second = loop.state.emus[ACTOR_TRAINING][1]
    loop.world.shards[ACTOR_TRAINING].shards[second.endpoints[1], second.unit][MOMENT][0, 0] += 1
    loop.boundary(2)
    assert loop.world.stopped is not None
    assert str(MOMENT) in loop.world.stopped
    assert not [op for op in loop.world.calls("run") if isinstance(op, Op) and op.id.startswith("e2")]


@pytest.mark.parametrize("at", ["spawn", "install", "seed", "bind"])
@pytest.mark.parametrize(("kind", "why"), [("fail", "the disk is on fire"), ("lose", "it died")])
def test_failure_at_the_start_says_where_and_why(make_loop: MakeLoop, at: str, kind: str, why: str) -> None:
    faults = Faults()
    getattr(faults, kind)("d2.0", at)
    loop = make_loop(faults=faults)
    assert loop.begin() is None
    assert faults.fired == [(kind, "d2.0", at)]
    call = f"{at} e0" if kind == "fail" and at in ("install", "bind") else at
    assert loop.world.stopped == f"endpoint d2.0 did not start: {call}: {why}"


def test_nothing_is_decided_after_the_stop(make_loop: MakeLoop) -> None:
    loop = make_loop(faults=Faults().lose("d1.0", "Split"))
    loop.run(1)
    state, before = loop.state, len(loop.world.log)
    while (fact := loop.world.next_fact()) is not None:
        loop.driver.post(fact)
    assert loop.state == state
    assert not [entry for entry in loop.world.log[before:] if isinstance(entry, Call)]


def test_endpoint_without_a_unit_may_die_and_the_job_goes_on(make_loop: MakeLoop) -> None:
    loop = make_loop({"step": 1, "join": "6", "stages": {ACTOR_TRAINING: choice(1, 2, 2, "0-3")}})
    loop.begin()
    first = loop.boundary(1)
    loop.driver.post(EndpointDied(endpoint="d6.0", during="nothing"))
    release = loop.boundary(2)
    assert first is not None
    assert release is not None
    assert release.emus == first.emus
    assert 6 not in loop.state.endpoint_of


# --- what is asked twice -----------------------------------------------------------------------------------------------


def test_second_question_for_a_step_is_answered_with_the_same_release_and_decides_nothing(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.begin()
    release = loop.boundary(1)
    state, log = loop.state, len(loop.world.log)
    assert loop.ask_again() == release
    assert loop.state == state
    assert len(loop.world.log) == log


def test_second_question_during_a_transition_waits_for_its_end(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.begin()
    report = replace(loop.truth.report(1, loop.last), step=1)  # type: ignore[arg-type]
    loop.world.released = None
    loop.driver.post(BoundaryReached(report=report))
    loop.driver.post(BoundaryReached(report=report))
    assert loop.world.released is None
    while (fact := loop.world.next_fact()) is not None:
        loop.driver.post(fact)
    assert isinstance(loop.state.phase, Steady)
    assert Counter(verbs(loop))["digest"] == 2
    check_serving(loop, loop.world.released)


def test_job_that_asks_to_start_twice_is_started_once(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.driver.post(JobStarted(devices=tuple(range(6))))
    release = loop.begin()
    assert Counter(verbs(loop)) == Counter({"spawn": 1, "install": 6, "seed": 1, "bind": 1})
    assert loop.ask_again() == release
    assert len(verbs(loop)) == 9
    assert len(SCRIPT) == 7
