"""What no device holds any more is read from a checkpoint, and the training is that of a run that nothing has happened to.

pool falls to zero, the head dies in the wait, other devices come       the only unit of a model-stage dies, unannounced
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nereus.cli.resume import checkpoint_to_resume
from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import Waited
from nereus.runtime.checkpoints import load, sealed, verify
from tests.actors import journals
from tests.actors.equality import Record, assert_equal, differences, furthest, relative
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, Run, make_job, run, stage
from tests.actors.killing import Killer, killing, the_head
from tests.actors.processes import named
from tests.actors.uniform import record_uniform
from tests.reference import train

pytestmark = pytest.mark.ray

STEPS = 10

TRACE = {0: 2, 3: 0, 8: 3, STEPS: 3}
"""Devices by the pool's steps: both get their notice after step 3 and are gone after step 5; three come at step 8."""

ZERO: dict[str, Any] = {
    **TINY,
    "name": "zero",
    "steps": STEPS,
    "cluster": {"nodes": 1, "devices_per_node": 3, "device": {"memory": "64MiB"}},
    "plan": {
        GENERATION: stage(2, 1, 1, "0-1", 4),
        REFERENCE: stage(1, 1, 2, "0-1", 4),
        TRAINING: stage(1, 2, 1, "0-1", 2),
    },
    "policy": {"adapt": True, "micro_batches": [1, 2, 4]},
}

LAST_SAVED, DIES_IN = 4, 6
"""Steps of the job whose worker dies: the last that was saved, every two, and the one in whose middle that is."""

SOLE: dict[str, Any] = {
    **TINY,
    "name": "sole",
    "steps": STEPS,
    "cluster": {"nodes": 1, "devices_per_node": 2, "device": {"memory": "256MiB", "speed": 0.1}},
    "plan": {
        GENERATION: stage(2, 1, 1, "0-1", 8),
        REFERENCE: stage(1, 1, 2, "0-1", 4),
        TRAINING: stage(2, 1, 1, "0-1", 2),
    },
    "checkpoint": {"every_steps": 2},
}


@dataclass(frozen=True)
class Came:
    """A run that went on to its end, and the rollouts that it trained on."""

    run: Run
    rollouts: Path

    def told(self, kind: type[Any]) -> list[Any]:
        return [news for news in self.run.events if isinstance(news, kind)]


@pytest.fixture(scope="module")
def zero(tmp_path_factory: pytest.TempPathFactory) -> Came:
    folder = tmp_path_factory.mktemp("zero")
    (folder / "pool.csv").write_text("time_s,available_gpus\n" + "".join(f"{t},{n}\n" for t, n in TRACE.items()))
    job = make_job(
        ZERO,
        availability=str(folder / "pool.csv"),
        rollouts={"source": "recorded", "path": str(folder / "rollouts")},
    )
    record_uniform(job, folder / "rollouts", lambda step, row: job.workload.cap_at(step) - (3 * row + step) % 5)

    def head_in_the_wait(killer: Killer) -> None:
        killer.when(lambda: "StateSealed" in journals.kinds(folder / "run"), the_head)

    with killing(folder / "run", head_in_the_wait) as killer:
        found = run(job, folder / "run")
    assert len(killer.deaths) == 1
    return Came(found, folder / "rollouts")


def test_training_over_an_empty_pool_equals_the_single_process(zero: Came, record_property: Record) -> None:
    assert_equal(differences(zero.run, train(zero.run.job, zero.rollouts)), record_property)


def test_pool_that_falls_to_zero_costs_time_and_no_step(zero: Came) -> None:
    (saved,), (restored,) = zero.told(Saved), zero.told(Restored)
    assert (saved.step, restored.step, restored.repeated_steps) == (4, 4, 0)
    assert sum(waited.seconds for waited in zero.told(Waited)) >= 2.0, "the pool's steps without a device"
    assert [report.step for report in zero.run.steps] == list(range(1, STEPS + 1))
    summary = zero.run.summary
    assert (summary.samples_seen, summary.samples_repeated, summary.samples_skipped) == (STEPS * 4, 0, 0)
    assert {e for report in zero.run.steps[:4] for e in report.peak_bytes} == {"d0.0", "d1.0"}
    assert all(e.endswith(".1") or e == "d2.0" for report in zero.run.steps[4:] for e in report.peak_bytes)


def test_journal_of_a_job_that_was_restored_replays_to_the_same_effects(zero: Came) -> None:
    journals.assert_replays(zero.run)


@pytest.fixture(scope="module")
def sole(tmp_path_factory: pytest.TempPathFactory) -> Came:
    folder = tmp_path_factory.mktemp("sole")
    job = make_job(SOLE, rollouts={"source": "recorded", "path": str(folder / "rollouts")})
    record_uniform(job, folder / "rollouts", lambda step, row: 1 + (3 * row + step) % job.workload.cap_at(step))

    def a_worker(killer: Killer) -> None:
        killer.in_step(DIES_IN, 0.3, lambda processes: named(processes, actor="Worker"))

    with killing(folder / "run", a_worker) as killer:
        found = run(job, folder / "run")
    assert len(killer.deaths) == 1
    return Came(found, folder / "rollouts")


def test_training_after_the_last_copy_has_died_equals_the_single_process(sole: Came, record_property: Record) -> None:
    (restored,) = sole.told(Restored)
    assert (restored.step, restored.repeated_steps) == (LAST_SAVED, 1)
    once = {report.step: report for report in sole.run.steps}
    kept = Run(sole.run.job, sole.run.summary, list(once.values()), sole.run.folder)
    assert_equal(differences(kept, train(sole.run.job, sole.rollouts)), record_property)


def test_steps_that_are_run_again_are_the_same_and_are_counted(sole: Came) -> None:
    reports = sole.run.steps
    assert [report.step for report in reports] == [*range(1, DIES_IN), *range(LAST_SAVED + 1, STEPS + 1)]
    first, again = (report for report in reports if report.step == LAST_SAVED + 1)
    assert (first.loss, first.grad_norm, first.updates) == (again.loss, again.grad_norm, again.updates)
    summary = sole.run.summary
    assert summary.steps == STEPS
    assert [(entry["step"], entry["repeated_steps"]) for entry in summary.restored] == [(LAST_SAVED, 1)]
    assert (summary.samples_seen, summary.samples_repeated, summary.samples_skipped) == (STEPS * 4, 0, 0)


def test_checkpoints_on_disk_are_whole_and_the_last_two(sole: Came) -> None:
    paths = sealed(sole.run.folder / "checkpoints")
    assert [load(path).step for path in paths] == [STEPS - 2, STEPS]
    assert all(verify(path) > 0 for path in paths)
    assert sorted(path.name for path in paths[0].parent.iterdir()) == sorted(path.name for path in paths)


def test_another_run_goes_on_from_a_checkpoint_under_another_plan(
    sole: Came, tmp_path: Path, record_property: Record
) -> None:
    plan = {
        GENERATION: stage(1, 1, 2, "0-1", 8),
        REFERENCE: stage(2, 1, 1, "0-1", 4),
        TRAINING: stage(1, 2, 1, "0-1", 2),
    }
    job = make_job(SOLE, name="resumed", plan=plan, rollouts={"source": "recorded", "path": str(sole.rollouts)})
    checkpoint = checkpoint_to_resume(job, sealed(sole.run.folder / "checkpoints")[0])
    found = run(job, tmp_path / "run", checkpoint=checkpoint)
    assert [report.step for report in found.steps] == [STEPS - 1, STEPS]
    (restored,) = [news for news in found.events if isinstance(news, Restored)]
    assert {name: (s.layout.tp, s.layout.pp, s.dp) for name, s in restored.plan.stages.items()} == {
        name: (choice["tp"], choice["pp"], choice["dp"]) for name, choice in plan.items()
    }
    expected = train(job, sole.rollouts)
    losses = expected.step_losses(job.grpo.updates_per_step)[-2:]
    assert_equal(
        {
            "loss": relative(found.losses, losses),
            "kl": relative([step.kl for step in found.steps], expected.step_kls(job.grpo.updates_per_step)[-2:]),
            "grad_norm": relative(found.grad_norms, expected.step_grad_norms(job.grpo.updates_per_step)[-2:]),
            "parameters": furthest(found.parameters, expected.parameters),
        },
        record_property,
    )
    assert (found.summary.samples_seen, found.summary.samples_repeated) == (STEPS * 4, 0)
