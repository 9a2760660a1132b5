"""The controller of a scripted job on an in-memory world: what starts, what boundaries do, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest

from nereus.emu.unit import Emu
from nereus.errors import DigestMismatch, EndpointLost, TransitionFailed
from nereus.layout.dense import layer_name
from nereus.layout.tensors import Kind, TensorRef
from nereus.runtime.boundary import Release, StepReport
from nereus.runtime.events import TransitionReport
from nereus.runtime.scripted import ScriptedController
from nereus.spec.plan import ScriptedTransition, StageChoice
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.transition.ops import TRANSFER, GroupKey, Program
from tests.builders import Values
from tests.runtime.world import Call, Faults, World

CUT = TensorRef(layer_name(1, "mlp.up_proj"), Kind.PARAMETER)


def choice(tp: int, pp: int, dp: int, devices: str, micro_batch: int = 1) -> StageChoice:
    return StageChoice.model_validate({"tp": tp, "pp": pp, "dp": dp, "devices": devices, "micro_batch": micro_batch})


FIRST: Mapping[str, StageChoice] = {
    ACTOR_GENERATION: choice(2, 1, 2, "0-3"),
    REFERENCE_INFERENCE: choice(1, 1, 2, "4-5"),
    ACTOR_TRAINING: choice(2, 2, 1, "0-3", micro_batch=4),
}


def entry(step: int, **fields: Any) -> ScriptedTransition:
    return ScriptedTransition.model_validate({"step": step, **fields})


SCRIPT = (
    entry(1, stages={ACTOR_TRAINING: choice(1, 2, 2, "0-3")}),  # Split
    entry(2, stages={ACTOR_TRAINING: choice(2, 2, 1, "0-3"), ACTOR_GENERATION: choice(4, 1, 1, "0-3")}),  # Merge
    entry(3, join="6-7", stages={ACTOR_TRAINING: choice(2, 1, 3, "0-3,6-7"), REFERENCE_INFERENCE: choice(1, 1, 3, "4-6")}),
    entry(4, leave="6-7", stages={ACTOR_TRAINING: choice(2, 1, 1, "0-1"), REFERENCE_INFERENCE: choice(1, 1, 2, "4-5")}),
    entry(6, join="6"),
    entry(7, leave="6"),
    entry(8, join="7", stages={ACTOR_TRAINING: choice(2, 1, 2, "0-1,4,7"), ACTOR_GENERATION: choice(1, 1, 5, "0-3,7")}),
)
"""All four primitives, two stages at once, devices that join and leave with and without a change of layout."""


def report(step: int) -> StepReport:
    return StepReport(
        step=step,
        reward=0.0,
        response_tokens_mean=1.0,
        response_tokens_max=1,
        num_samples=1,
        loss=0.0,
        kl=0.0,
        grad_norm=0.0,
        updates=step,
        stage_s={},
        step_s=0.0,
        late_s=0.0,
        declared_s=0.0,
        peak_bytes={},
    )


class Run:
    """A controller on a world, and what it reported."""

    def __init__(self, *script: ScriptedTransition, faults: Faults | None = None, seed: int | None = None) -> None:
        self.world = World(faults=faults, order=None if seed is None else Random(seed))
        self.reports: list[TransitionReport] = []
        nodes = {device: device // 4 for device in range(8)}
        self.controller = ScriptedController(self.world, self.world, nodes, script, self.reports.append)

    def start(self) -> Release:
        return self.controller.start(FIRST, range(6))

    def boundary(self, step: int) -> Release:
        return self.controller.boundary(report(step))


def emus_of(release: Release) -> list[Emu]:
    return [emu for emus in release.emus.values() for emu in emus]


def check_serving(world: World, release: Release) -> None:
    """The released units are those that are bound, they are all there is, and their plan is the one that was asked for."""
    emus = emus_of(release)
    assert set(world.bound) == set(emus)
    assert world.units() == {(endpoint, emu.unit) for emu in emus for endpoint in emu.endpoints}
    for stage, plan in release.plan.stages.items():
        held = release.emus[stage]
        assert [emu.layout for emu in held] == [plan.layout] * plan.dp
        assert [int(e[1:].partition(".")[0]) for emu in held for e in emu.endpoints] == list(plan.devices)


def check_sync(world: World, release: Release) -> None:
    """After an update, the installed weight sync makes generation hold what training holds."""
    world.train()
    world.sync(release.sync_op)
    trained, served = (world.shards[stage].shards for stage in (ACTOR_TRAINING, ACTOR_GENERATION))
    whole: dict[TensorRef, Values] = {}
    for tensors in trained.values():
        for ref, values in tensors.items():
            whole[ref] = np.maximum(whole.get(ref, values), values)  # -1 where an endpoint holds nothing
    for emu in release.emus[ACTOR_GENERATION]:
        for endpoint in emu.endpoints:
            for ref, values in served[endpoint, emu.unit].items():
                if ref.kind is Kind.PARAMETER:
                    assert (values == np.where(values >= 0, whole[ref], -1)).all(), f"{ref} at {endpoint}"


def test_start_seeds_exactly_the_units_of_the_plan_and_binds_every_device() -> None:
    run = Run()
    release = run.start()
    (seeded,) = run.world.calls("seed")
    assert set(seeded) == set(emus_of(release))  # type: ignore[call-overload]
    assert run.world.wrong(emus_of(release)) == []
    assert {name: len(emus) for name, emus in release.emus.items()} == {name: c.dp for name, c in FIRST.items()}
    check_serving(run.world, release)
    ((epoch, _, endpoints, _),) = run.world.calls("bind")  # type: ignore[misc]
    assert (epoch, sorted(endpoints)) == (0, [f"d{device}.0" for device in range(6)])  # type: ignore[has-type]
    assert (release.epoch, release.plan.epoch) == (0, 0)


def test_start_keeps_the_devices_in_the_order_of_the_file_and_the_micro_batch() -> None:
    choices = {**FIRST, ACTOR_TRAINING: choice(2, 1, 2, "3,1,0,2", micro_batch=7)}
    release = Run().controller.start(choices, range(6))
    assert release.emus[ACTOR_TRAINING][0].endpoints == ("d3.0", "d1.0")
    assert release.plan.stages[ACTOR_TRAINING].devices == (3, 1, 0, 2)
    assert release.plan.stages[ACTOR_TRAINING].micro_batch == 7


def test_start_spawns_installs_seeds_and_binds_in_this_order() -> None:
    run = Run()
    run.start()
    verbs = [item.verb for item in run.world.log if isinstance(item, Call)]
    assert verbs == ["spawn", *["install"] * 6, "seed", "bind"]


def test_boundary_without_an_entry_releases_the_same_units_and_calls_nothing() -> None:
    run = Run(*SCRIPT)
    first = run.start()
    before = len(run.world.log)
    assert run.boundary(5) == first
    assert len(run.world.log) == before
    assert run.reports == []


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_script_of_all_primitives_joins_and_leaves_keeps_the_state_and_the_sync_working(seed: int | None) -> None:
    run = Run(*SCRIPT, seed=seed)
    release = run.start()
    primitives: set[str] = set()
    for step in range(1, 10):
        release = run.boundary(step)
        check_serving(run.world, release)
        check_sync(run.world, release)
        present = set(range(6)) | {3: {6, 7}, 6: {6}, 8: {7}, 9: {7}}.get(step, set())
        assert {int(e[1:].partition(".")[0]) for e in run.world.endpoints} == present
    for change in run.reports:
        primitives |= set(change.primitives)
        assert change.outcome.digest_equal
    assert primitives == {"Split", "Merge", "Extend", "Destroy"}
    assert [change.step for change in run.reports] == [1, 2, 3, 4, 6, 7, 8]
    assert [change.epoch for change in run.reports] == [1, 2, 3, 4, 5, 6, 7]
    assert release.epoch == 7


def test_report_says_who_joined_and_left_and_on_which_plan_the_job_goes_on() -> None:
    run = Run(*SCRIPT)
    run.start()
    plans = [run.boundary(step).plan for step in (1, 2, 3, 4)]
    assert [(change.joined, change.left) for change in run.reports] == [((), ()), ((), ()), ((6, 7), ()), ((), (6, 7))]
    assert [change.plan for change in run.reports] == plans


def test_device_that_comes_back_is_another_endpoint() -> None:
    run = Run(*SCRIPT)
    run.start()
    for step in range(1, 8):
        run.boundary(step)
    assert run.world.calls("spawn") == [(0, 1, 2, 3, 4, 5), (6, 7), (6,)]
    assert run.world.calls("retire") == [("d6.0", "d7.0"), ("d6.1",)]


def test_joining_devices_start_before_the_transition_and_leaving_ones_end_after_its_commit() -> None:
    run = Run(*SCRIPT)
    run.start()
    for step in (1, 2):
        run.boundary(step)
    log = run.world.log
    for step, first, last in ((3, "spawn", "bind"), (4, "digest", "retire")):
        began = len(log)
        run.boundary(step)
        verbs = [item.verb for item in log[began:] if isinstance(item, Call)]
        assert (verbs[0], verbs[-1]) == (first, last)


def test_stage_that_the_script_does_not_name_keeps_its_units() -> None:
    run = Run(*SCRIPT)
    first = run.start()
    second = run.boundary(1)
    assert second.emus[REFERENCE_INFERENCE] == first.emus[REFERENCE_INFERENCE]
    assert second.emus[ACTOR_GENERATION] == first.emus[ACTOR_GENERATION]
    assert second.emus[ACTOR_TRAINING] != first.emus[ACTOR_TRAINING]


def test_weight_sync_is_installed_for_each_epoch_on_every_endpoint_that_takes_part() -> None:
    run = Run(*SCRIPT)
    releases = [run.start(), *(run.boundary(step) for step in (1, 2, 3, 4))]
    assert [release.sync_op for release in releases] == [f"e{epoch}.sync" for epoch in range(5)]
    for release in releases:
        installed = {
            program.endpoint
            for program in run.world.calls("install")
            if isinstance(program, Program) and any(op.id == release.sync_op for op in program.ops)
        }
        involved = {
            endpoint
            for stage in (ACTOR_GENERATION, ACTOR_TRAINING)
            for emu in release.emus[stage]
            for endpoint in emu.endpoints
        }
        generating = {endpoint for emu in release.emus[ACTOR_GENERATION] for endpoint in emu.endpoints}
        assert generating <= installed <= involved


def test_every_program_has_the_communicators_of_the_new_plan_and_only_those_and_the_syncs_are_kept() -> None:
    run = Run(*SCRIPT)
    run.start()
    release = run.boundary(1)
    programs = [p for p in run.world.calls("install") if isinstance(p, Program) and p.epoch == 1]
    compute = run.world.compute_groups(emus_of(release))
    for program in programs:
        assert {group for group in compute if program.endpoint in group.members} <= set(program.groups)
    keep = run.world.calls("bind")[-1][3]  # type: ignore[index]
    sync = {x.group for p in programs for op in p.ops if op.id == release.sync_op for x in op.exchanges}
    assert keep == compute | sync
    assert all(isinstance(group, GroupKey) and group.lane == TRANSFER for group in sync)


@pytest.mark.parametrize("at", ["spawn", "install", "seed", "bind"])
def test_death_at_the_start_is_told_at_once(at: str) -> None:
    run = Run(faults=Faults().lose("d2.0", at))
    with pytest.raises(EndpointLost, match=r"endpoint d2\.0 died"):
        run.start()
    assert run.world.faults.fired == [("lose", "d2.0", at)]


@pytest.mark.parametrize(
    ("at", "who"), [("spawn", r"devices \[2\] did not start"), ("install", "d2.0"), ("seed", "d2.0"), ("bind", "d2.0")]
)
def test_silence_at_the_start_says_who_did_not_answer(at: str, who: str) -> None:
    run = Run(faults=Faults().silence("d2.0", at))
    with pytest.raises(TransitionFailed, match=who):
        run.start()


@pytest.mark.parametrize("at", ["spawn", "install", "seed", "bind"])
def test_failure_at_the_start_says_where_and_why(at: str) -> None:
    run = Run(faults=Faults().fail("d2.0", at))
    with pytest.raises(TransitionFailed, match=r"failed on d2\.0: the disk is on fire"):
        run.start()


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (Faults().fail("d1.0", "Split"), TransitionFailed),
        (Faults().lose("d1.0", "install"), EndpointLost),
        (Faults().lose("d1.0", "Split"), EndpointLost),
        (Faults().silence("d1.0", "digest"), TransitionFailed),
        (Faults().corrupt("Split", CUT), DigestMismatch),
    ],
    ids=["failed op", "dead at install", "dead in an op", "silent", "corrupted"],
)
def test_transition_that_fails_commits_nothing_and_reports_none(faults: Faults, error: type[Exception]) -> None:
    run = Run(*SCRIPT)
    first = run.start()
    run.world.faults = faults
    with pytest.raises(error):
        run.boundary(1)
    assert len(run.world.faults.fired) == 1
    assert len(run.world.calls("bind")) == 1
    assert set(run.world.bound) == set(emus_of(first))
    assert run.world.wrong(emus_of(first)) == []
    assert run.reports == []


def test_old_plan_stands_after_a_transition_that_failed() -> None:
    run = Run(*SCRIPT, faults=Faults().fail("d1.0", "Split"))
    first = run.start()
    with pytest.raises(TransitionFailed):
        run.boundary(1)
    assert run.boundary(5) == first
