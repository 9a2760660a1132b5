"""The quickstart as a person runs it, cut to 14 steps: one transition, in which node 1 starts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.actors.processes import Process, descendants, private_folders, users_of

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")
"""Where Ray notes the cluster that others of its commands on this machine connect to."""

KEYS = {
    "steps",
    "reward_first",
    "reward_last",
    "transitions",
    "samples_seen",
    "samples_repeated",
    "samples_skipped",
    "peak_bytes",
    "lateness",
    "final_plan",
}
TRANSITION_KEYS = {"step", "primitives", "bytes_moved", "seconds", "digest_equal"}


class Ended(NamedTuple):
    """What the command left."""

    code: int
    out: list[str]
    err: str
    folder: Path
    processes: set[Process]
    """All that it started."""


@pytest.fixture(scope="module")
def current_cluster() -> str | None:
    return CURRENT_CLUSTER.read_text() if CURRENT_CLUSTER.exists() else None


@pytest.fixture(scope="module")
def quickstart(current_cluster: str | None, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("quickstart")
    arguments = ["run", "examples/quickstart.yaml", "--steps", "14", "--json", "--run-dir", str(folder / "runs")]
    started: set[Process] = set()
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        command = subprocess.Popen([sys.executable, "-m", "nereus", *arguments], cwd=ROOT, stdout=out, stderr=err)
    try:
        while command.poll() is None:
            started |= descendants(command.pid)
            time.sleep(1.0)
    finally:
        command.kill()
        command.wait()
    lines = (folder / "out").read_text().splitlines()
    return Ended(command.returncode, lines, (folder / "err").read_text(), next((folder / "runs").iterdir()), started)


@pytest.fixture(scope="module")
def summary(quickstart: Ended) -> dict[str, Any]:
    assert quickstart.code == 0, quickstart.err
    found: dict[str, Any] = json.loads(quickstart.out[-1])
    return found


def test_last_line_is_the_summary_and_the_only_one(quickstart: Ended, summary: dict[str, Any]) -> None:
    assert len(quickstart.out) == 1
    assert set(summary) >= KEYS
    assert json.loads((quickstart.folder / "summary.json").read_text()) == summary


def test_standard_error_is_empty(quickstart: Ended) -> None:
    assert quickstart.err == ""


def test_transition_keeps_the_digest_and_every_sample(summary: dict[str, Any]) -> None:
    (transition,) = summary["transitions"]
    assert set(transition) >= TRANSITION_KEYS
    assert transition["step"] == 12
    assert transition["digest_equal"] is True
    assert transition["primitives"]["Extend"] > 0
    assert transition["bytes_moved"] > 0
    assert 0 < transition["seconds"] < 30
    assert summary["samples_seen"] == 14 * 16
    assert (summary["samples_repeated"], summary["samples_skipped"]) == (0, 0)


def test_reward_is_above_chance_and_rises(summary: dict[str, Any]) -> None:
    assert summary["steps"] == 14
    assert 0.15 < summary["reward_first"] < 0.4
    assert summary["reward_last"] > summary["reward_first"]


def test_peak_memory_stays_below_what_a_device_declares(summary: dict[str, Any]) -> None:
    peak = summary["peak_bytes"]
    assert 0 < peak["measured"] <= 64 * 2**20
    assert 0 < peak["predicted"] <= 64 * 2**20


def test_devices_are_hardly_ever_late(summary: dict[str, Any]) -> None:
    assert 0 <= summary["lateness"] < 0.03


def test_final_plan_is_that_of_the_script(summary: dict[str, Any]) -> None:
    assert {name: stage["dp"] for name, stage in summary["final_plan"].items()} == {
        "actor_generation": 8,
        "reference_inference": 8,
        "actor_training": 4,
    }


def test_run_folder_holds_the_job_and_every_event(quickstart: Ended) -> None:
    events = [json.loads(line) for line in (quickstart.folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert [kinds.count(kind) for kind in ("started", "step", "transition")] == [1, 14, 1]
    assert (quickstart.folder / "job.yaml").read_text() == (ROOT / "examples" / "quickstart.yaml").read_text()


def test_run_leaves_no_process_and_no_folder_behind(quickstart: Ended) -> None:
    folders = private_folders(quickstart.processes)
    assert len(folders) == 1
    assert not [process.command for process in quickstart.processes if process.alive]
    assert not users_of(folders)
    assert not [folder for folder in folders if folder.exists()]


def test_run_does_not_become_the_current_cluster_of_the_machine(quickstart: Ended, current_cluster: str | None) -> None:
    assert (CURRENT_CLUSTER.read_text() if CURRENT_CLUSTER.exists() else None) == current_cluster
