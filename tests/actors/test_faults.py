"""What a death changes: nothing, where an intact unit is left; else the run ends at once and says why.

uniform rollouts -> one run in which head, planner and a worker are killed -> equal to the single process?
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from nereus.control.effects import TransitionRecord
from nereus.control.events import StepLost
from tests.actors import journals
from tests.actors.equality import Record, assert_equal, differences
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, Run, make_job, run, stage
from tests.actors.killing import Death, Killer, killing, the_head, the_planner
from tests.actors.processes import assert_nothing_left, descendants, wait_until, workers_of_the_last_node
from tests.actors.uniform import record_uniform
from tests.reference import train

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]

CLUSTER: dict[str, Any] = {"nodes": 2, "devices_per_node": 2, "device": {"memory": "256MiB", "speed": 0.1}}
"""Slow devices: a step takes about half a second, so that a death can be put into its middle."""

LAST_NODE = ("d2.0", "d3.0")
"""The endpoints on the second of two nodes with two devices each."""

HEAD_DIES_IN, HEAD_DIES_AFTER, PLANNER_DIES_IN, WORKER_DIES_IN = 2, 4, 6, 8
"""Steps: the one in which the head is killed, the one with a transition at its end, in which it is killed again, the one in
which the planner is, and the one in which a worker is, so that there must be a new plan."""

MID_STEP_S = 0.3
"""Seconds into a step at which some of its updates are done and some are not."""

END_S = 30.0
"""Seconds from the death to the end of the run: a collective whose peer is gone would wait for 60."""


@dataclass(frozen=True)
class Survived:
    """A run that went on to its end."""

    run: Run
    rollouts: Path
    head_in_step: Death
    head_in_transition: Death
    planner_in_step: Death
    worker_in_step: Death


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Survived:
    """The head dies in a step and in a transition, then the planner, then a worker in a step."""
    folder = tmp_path_factory.mktemp("survived")
    job = make_job(
        TINY,
        name="survivor",
        steps=10,
        cluster=CLUSTER,
        plan={
            GENERATION: stage(2, 1, 2, "0-3", 8),
            REFERENCE: stage(1, 1, 4, "0-3", 4),
            TRAINING: stage(1, 2, 2, "0-3", 2),
        },
        transitions=[{"step": HEAD_DIES_AFTER, "stages": {TRAINING: stage(2, 1, 2, "0-3", 2)}}],
        rollouts={"source": "recorded", "path": str(folder / "rollouts")},
    )
    record_uniform(job, folder / "rollouts", lambda step, row: 1 + (3 * row + step) % job.workload.cap_at(step))

    def deaths(killer: Killer) -> None:
        killer.in_step(HEAD_DIES_IN, MID_STEP_S, the_head)
        killer.in_transition_after(HEAD_DIES_AFTER, the_head)
        killer.in_step(PLANNER_DIES_IN, MID_STEP_S, the_planner)
        killer.in_step(WORKER_DIES_IN, MID_STEP_S, workers_of_the_last_node)

    with killing(folder / "run", deaths) as killer:
        found = run(job, folder / "run")
    return Survived(found, folder / "rollouts", *killer.deaths)


def test_deaths_came_in_the_middle_of_steps_and_of_a_transition(survived: Survived) -> None:
    kinds, steps = journals.kinds(survived.run.folder), journals.steps(survived.run.folder)
    first, second = survived.head_in_step.num_events, survived.head_in_transition.num_events
    assert steps[first - 1] == HEAD_DIES_IN - 1
    assert {"Installed", "Committed"} <= set(kinds[steps.index(HEAD_DIES_AFTER) : steps.index(HEAD_DIES_AFTER + 1)])
    assert "Committed" in kinds[second : steps.index(HEAD_DIES_AFTER + 1)]
    (lost,) = [event for event in journals.events(survived.run.folder) if isinstance(event, StepLost)]
    assert lost.endpoint in LAST_NODE
    assert lost.during == TRAINING


def test_training_with_deaths_equals_the_single_process(survived: Survived, record_property: Record) -> None:
    assert_equal(differences(survived.run, train(survived.run.job, survived.rollouts)), record_property)


def test_every_step_is_told_once_and_no_sample_is_lost_or_used_twice(survived: Survived) -> None:
    job, summary = survived.run.job, survived.run.summary
    assert [step.step for step in survived.run.steps] == list(range(1, job.steps + 1))
    assert [step.updates for step in survived.run.steps] == [2 * step for step in range(1, job.steps + 1)]
    assert summary.samples_seen == job.steps * job.workload.prompts_per_step
    assert (summary.samples_repeated, summary.samples_skipped) == (0, 0)


def test_plan_after_a_death_is_made_of_intact_units_and_keeps_the_digest(survived: Survived) -> None:
    summary = survived.run.summary
    scripted, recovery = [event for event in survived.run.events if isinstance(event, TransitionRecord)]
    assert [t["digest_equal"] for t in summary.transitions] == [True, True]
    assert scripted.step == HEAD_DIES_AFTER
    assert recovery.step == WORKER_DIES_IN - 1
    assert "died during actor_training" in recovery.trigger
    assert len({0, 1, 2, 3} - recovery.plan.devices) >= 1


def test_journal_of_a_head_that_died_twice_replays_to_the_same_decisions(survived: Survived) -> None:
    journals.assert_replays(survived.run)


ONE_COPY: dict[str, Any] = {
    **TINY,
    "name": "one-copy",
    "dtype": "float32",
    "steps": 100_000,
    "save_weights": False,
    "cluster": CLUSTER,
    "plan": {
        GENERATION: stage(2, 1, 2, "0-3", 8),
        REFERENCE: stage(1, 1, 2, "0-1", 4),
        TRAINING: stage(4, 1, 1, "0-3", 2),
    },
}
"""One EMU of training over two nodes: all others wait in Gloo collectives for the one that is gone."""


def test_command_ends_with_exit_code_1_when_the_last_copy_of_a_model_stage_dies(
    tmp_path: Path, record_property: Record
) -> None:
    job, out, err = tmp_path / "job.yaml", tmp_path / "out", tmp_path / "err"
    job.write_text(yaml.safe_dump(ONE_COPY))
    arguments = [sys.executable, "-m", "nereus", "run", str(job), "--run-dir", str(tmp_path / "runs")]
    with out.open("w") as stdout, err.open("w") as stderr:
        command = subprocess.Popen(arguments, cwd=ROOT, stdout=stdout, stderr=stderr)
    try:
        wait_until(lambda: "step   2" in out.read_text() or command.poll() is not None, 120)
        before, killed_at = descendants(command.pid), time.monotonic()
        os.kill(workers_of_the_last_node(before)[0].pid, signal.SIGKILL)
        code = command.wait(END_S + 30)
        ended_s = time.monotonic() - killed_at
    finally:
        command.kill()
        command.wait()
    record_property("seconds_to_the_exit", ended_s)
    assert code == 1, err.read_text()
    assert ended_s < END_S
    (line,) = err.read_text().splitlines()
    assert line.startswith("error: endpoint d"), line
    assert any(endpoint in line for endpoint in LAST_NODE)
    assert f"{TRAINING}/0@0" in line, "what it held"
    assert f"no intact copy of {TRAINING} is left" in line
    assert "run the job again" in line, "what to do"
    assert not list(tmp_path.glob("runs/*/summary.json"))
    assert_nothing_left(before)
