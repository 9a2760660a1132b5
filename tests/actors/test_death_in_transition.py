"""A worker dies while state moves: the others are unblocked, and the run goes on from intact units with the right digests.

uniform rollouts -> one run in which a worker is killed in a transition -> equal to the single process?
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from nereus.control.effects import Interrupted, TransitionRecord
from nereus.control.events import DigestsTaken, EndpointDied, Settled
from tests.actors import journals
from tests.actors.equality import Record, assert_equal, differences
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, Run, make_job, run, stage
from tests.actors.killing import Killer, killing
from tests.actors.processes import workers_of_the_last_node
from tests.actors.uniform import record_uniform
from tests.reference import train

pytestmark = pytest.mark.ray

STEP = 2
"""The step at whose boundary state moves."""

STEPS = 4


@dataclass(frozen=True)
class Survived:
    """A run that went on."""

    run: Run
    rollouts: Path


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Survived:
    folder = tmp_path_factory.mktemp("in_transition")
    job = make_job(
        TINY,
        name="mid-move",
        steps=STEPS,
        cluster={"nodes": 2, "devices_per_node": 2, "device": {"memory": "256MiB"}},
        plan={
            GENERATION: stage(2, 1, 2, "0-3", 8),
            REFERENCE: stage(1, 1, 4, "0-3", 4),
            TRAINING: stage(1, 2, 2, "0-3", 2),
        },
        transitions=[{"step": STEP, "stages": {TRAINING: stage(2, 1, 2, "0-3", 2), GENERATION: stage(1, 1, 4, "0-3", 4)}}],
        rollouts={"source": "recorded", "path": str(folder / "rollouts")},
    )
    record_uniform(job, folder / "rollouts", lambda step, row: 1 + (3 * row + step) % job.workload.cap_at(step))

    def death(killer: Killer) -> None:
        killer.in_transition_after(STEP, workers_of_the_last_node, answer="DigestsTaken")

    with killing(folder / "run", death) as killer:
        found = run(job, folder / "run")
    assert len(killer.deaths) == 1
    return Survived(found, folder / "rollouts")


def test_worker_died_while_state_was_on_the_move_and_the_others_became_quiet(survived: Survived) -> None:
    events = journals.events(survived.run.folder)
    moving = next(i for i, event in enumerate(events) if isinstance(event, DigestsTaken) and event.tag == "e1.before")
    died = next(i for i, event in enumerate(events) if isinstance(event, EndpointDied))
    quiet = [event for event in events[died:] if isinstance(event, Settled)]
    assert moving < died
    assert {event.epoch for event in quiet} == {1}
    assert len(quiet) == 3


def test_job_goes_on_from_the_intact_units_and_every_digest_is_equal(survived: Survived) -> None:
    (ended,) = [news for news in survived.run.events if isinstance(news, Interrupted)]
    (after,) = [news for news in survived.run.events if isinstance(news, TransitionRecord)]
    assert (ended.step, ended.epoch, ended.end) == (STEP, 1, "parted")
    assert (after.step, after.outcome["digest_equal"]) == (STEP, True)
    assert len(after.plan.devices & {2, 3}) <= 1
    assert [step.step for step in survived.run.steps] == list(range(1, STEPS + 1))


def test_training_equals_the_single_process(survived: Survived, record_property: Record) -> None:
    """Paper, section 6.2: Split and Merge change placement and sharding without changing logical state."""
    assert_equal(differences(survived.run, train(survived.run.job, survived.rollouts)), record_property)


def test_journal_replays_to_the_same_effects(survived: Survived) -> None:
    found = journals.replayed(survived.run.job, survived.run.folder)
    assert found.first_difference is None
    assert found.state.step == STEPS
