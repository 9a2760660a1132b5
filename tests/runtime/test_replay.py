"""Replaying the journal of a run gives its state, decisions and effects, in this process and in a fresh one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from nereus.control.effects import Decision
from nereus.control.events import BoundaryReached
from nereus.control.state import JobConfig, JobState
from nereus.runtime.journal import Journal, effects_hash
from nereus.runtime.replay import Replayed, replay
from tests.runtime.loop import POOL, Loop, adaptive_config, quickstart, scripted_config
from tests.runtime.world import World

ROOT = Path(__file__).parents[2]

FRESH = """
import sys
from pathlib import Path
from nereus.control.state import JobState
from nereus.runtime.journal import Journal
from nereus.runtime.replay import replay
from tests.runtime import test_replay
journal = Journal(Path(sys.argv[1]))
journal.open()
print(test_replay.told(replay(journal, JobState(config=test_replay.CONFIGS[sys.argv[2]]()))))
journal.close()
"""
"""Replays a journal and prints what it came to."""

CONFIGS = {
    "scripted": scripted_config,
    "adaptive": adaptive_config,
    "quickstart": lambda: quickstart()[0],
}


def told(replayed: Replayed) -> str:
    """Number of events, first difference, decisions and the final plan, as one line."""
    state = replayed.state
    decisions = [(d.step, d.cycle, str(d.verdict.code), d.verdict.reason) for d in replayed.decisions]
    return repr((replayed.num_events, replayed.first_difference, decisions, state.plan, state.bound, state.step))


def run(name: str, path: Path) -> Loop:
    """A run of one of the jobs, its facts in an order of their own."""
    config: JobConfig = CONFIGS[name]()
    pool = {"scripted": None, "adaptive": POOL, "quickstart": quickstart()[1]}[name]
    order = Random(7)
    loop = Loop(World(config, order=order, plan_boundaries=1, holds_values=False), path, pool=pool, order=order)
    loop.run({"scripted": 9, "adaptive": 16, "quickstart": 24}[name])
    assert loop.world.stopped is None
    loop.close()
    return loop


@pytest.fixture(params=sorted(CONFIGS), scope="module")
def run_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Loop]:
    """A finished run: which job, its journal, its loop."""
    path = tmp_path_factory.mktemp(request.param) / "journal.sqlite"
    return request.param, path, run(request.param, path)


@pytest.fixture
def journal(run_of: tuple[str, Path, Loop]) -> Iterator[Journal]:
    opened = Journal(run_of[1])
    opened.open()
    yield opened
    opened.close()


def test_replay_gives_the_state_the_decisions_and_the_effects_of_every_event(
    run_of: tuple[str, Path, Loop], journal: Journal
) -> None:
    _, _, loop = run_of
    replayed = replay(journal, JobState(config=loop.world.config))
    assert replayed.first_difference is None
    assert replayed.state == loop.state
    assert list(replayed.decisions) == [news for news in loop.news if isinstance(news, Decision)]
    assert replayed.num_events == loop.num_posted == len(list(journal.entries()))


def test_replay_on_a_job_that_was_read_again_has_the_same_effects(run_of: tuple[str, Path, Loop], journal: Journal) -> None:
    name, _, loop = run_of
    replayed = replay(journal, JobState(config=CONFIGS[name]()))
    assert replayed.first_difference is None
    assert replayed.state.plan == loop.state.plan
    assert replayed.state.emus == loop.state.emus


@pytest.mark.parametrize("seed", ["1", "2"])
def test_replay_in_a_fresh_process_with_another_hash_seed_is_the_same(
    run_of: tuple[str, Path, Loop], journal: Journal, seed: str
) -> None:
    name, path, loop = run_of
    here = told(replay(journal, JobState(config=loop.world.config)))
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FRESH, str(path), name]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.strip() == here
    assert here.startswith(f"({loop.num_posted}, None, ")


def test_difference_is_named_by_its_event(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    loop = run("scripted", path)
    journal = Journal(path)
    journal.open()
    seq = next(entry.seq for entry in journal.entries() if isinstance(entry.event, BoundaryReached))
    journal.acted(seq, ())
    assert replay(journal, JobState(config=loop.world.config)).first_difference == seq
    journal.close()


def test_replay_of_another_job_differs(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    run("scripted", path)
    journal = Journal(path)
    journal.open()
    assert replay(journal, JobState(config=adaptive_config())).first_difference is not None
    journal.close()


def test_event_that_was_never_acted_on_is_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    loop = run("scripted", path)
    journal = Journal(path)
    journal.open()
    last = [entry.event for entry in journal.entries()][-1]
    journal.append(1e6, last)
    replayed = replay(journal, JobState(config=loop.world.config))
    journal.close()
    assert replayed.first_difference is None
    assert replayed.num_events == loop.num_posted + 1


def test_effects_of_a_whole_run_have_hashes_of_their_own(run_of: tuple[str, Path, Loop], journal: Journal) -> None:
    hashes = [entry.effects for entry in journal.entries()]
    assert None not in hashes
    assert len(set(hashes) - {effects_hash(())}) > 10
