"""What a death changes: nothing, where an intact unit is left; else the run ends at once and says why.

uniform rollouts -> one run in which a worker, then the head (twice) are killed -> equal to the single process?
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import yaml

from nereus.control.effects import TransitionRecord
from nereus.control.events import DigestsTaken, StepLost
from tests.actors import journals
from tests.actors.equality import Record, assert_equal, differences
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, Run, make_job, run, stage
from tests.actors.processes import (
    Process,
    descendants,
    named,
    private_folders,
    users_of,
    workers_of_the_last_node,
)
from tests.actors.uniform import record_uniform
from tests.reference import train

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]

SPEED = 0.2

CLUSTER: dict[str, Any] = {"nodes": 2, "devices_per_node": 2, "device": {"memory": "256MiB", "speed": SPEED}}

LAST_NODE = ("d2.0", "d3.0")
"""The endpoints on the second of two nodes with two devices each."""

WORKER_DIES_IN, HEAD_DIES_IN, HEAD_DIES_AFTER = 8, 2, 4
"""Steps: the one in which a worker is killed, the one in which the head is, and the one with a transition at its end, in
which the head is killed again."""

END_S = 30.0
"""Seconds from the death to the end of the run: a collective whose peer is gone would wait for 60."""

LEFTOVER_S = 10.0
"""Seconds in which the processes of an ended cluster must be gone."""


@dataclass
class Killer:
    """Kills processes of the run in a folder at moments of its journal, on a thread of its own."""

    folder: Path
    killed: list[str] = field(default_factory=list)
    """What was done, and when in the journal."""
    ended: Event = field(default_factory=Event)

    def after_steps(self, steps: int, delay_s: float, victims: Callable[[set[Process]], list[Process]]) -> None:
        """Kill the first victim so long after a step was reported."""
        self._wait(lambda kinds: kinds.count("BoundaryReached") >= steps)
        time.sleep(delay_s)
        self._kill(victims)

    def in_transition_after(self, steps: int, victims: Callable[[set[Process]], list[Process]]) -> None:
        """Kill the first victim as soon as something has been answered in the transition at a step's boundary."""

        def is_moving(kinds: list[str]) -> bool:
            seen = kinds.count("BoundaryReached") >= steps
            return seen and "Installed" in kinds[[i for i, k in enumerate(kinds) if k == "BoundaryReached"][steps - 1] :]

        self._wait(is_moving)
        self._kill(victims)

    def _wait(self, condition: Callable[[list[str]], bool]) -> None:
        while not condition(journals.kinds(self.folder)):
            if self.ended.wait(0.002):
                raise RuntimeError("the run has ended")

    def _kill(self, victims: Callable[[set[Process]], list[Process]]) -> None:
        victim = victims(descendants(os.getpid()))[0]
        os.kill(victim.pid, signal.SIGKILL)
        self.killed.append(f"{victim.command} after {len(journals.kinds(self.folder))} events")


@contextmanager
def killing(folder: Path, script: Callable[[Killer], None]) -> Iterator[Killer]:
    """Carry out a script of deaths while the block runs."""
    killer = Killer(folder)
    thread = Thread(target=script, args=(killer,), daemon=True)
    thread.start()
    try:
        yield killer
    finally:
        killer.ended.set()
        thread.join()


def the_head(processes: set[Process]) -> list[Process]:
    return named(processes, "Head")


@dataclass(frozen=True)
class Survived:
    """A run that went on to its end."""

    run: Run
    rollouts: Path
    killed: list[str]


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Survived:
    """The head dies in a step and in a transition, then a worker in a step; all devices are paced, so steps are long."""
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
        killer.after_steps(HEAD_DIES_IN - 1, 0.3, the_head)
        killer.in_transition_after(HEAD_DIES_AFTER, the_head)
        killer.after_steps(WORKER_DIES_IN - 1, 0.6, lambda all_: workers_of_the_last_node(all_))

    with killing(folder / "run", deaths) as killer:
        found = run(job, folder / "run")
    return Survived(found, folder / "rollouts", killer.killed)


def test_all_three_deaths_happened_where_they_should(survived: Survived) -> None:
    print(survived.killed, [ (s.step, s.step_s, dict(s.stage_s)) for s in survived.run.steps])
    assert len(survived.killed) == 3
    (lost,) = [e for e in journals.events(survived.run.folder) if isinstance(e, StepLost)]
    assert lost.endpoint in LAST_NODE
    assert lost.during == TRAINING
    assert any(isinstance(e, DigestsTaken) for e in journals.events(survived.run.folder))


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
    devices = {device for stage_plan in recovery.plan.stages.values() for device in stage_plan.devices}
    assert len(devices) <= 3


def test_journal_of_a_head_that_died_twice_replays_to_the_same_decisions(survived: Survived) -> None:
    journals.assert_replays(survived.run)
