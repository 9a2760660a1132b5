"""A worker that is killed in the middle of a step ends the run within seconds, with a reason, and leaves nothing behind.

The job trains one EMU of tp 4 over two nodes, so that all others wait in Gloo collectives for the one that is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.launch import Launched, launched
from nereus.control.report import StepReport
from nereus.errors import EndpointLost
from tests.actors.jobs import GENERATION, REFERENCE, TINY, TRAINING, make_job, stage
from tests.actors.processes import Process, descendants, private_folders, users_of, workers_of_the_last_node

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]

ENDLESS: dict[str, Any] = {
    **TINY,
    "name": "endless",
    "dtype": "float32",
    "steps": 100_000,
    "save_weights": False,
    "cluster": {"nodes": 2, "devices_per_node": 2, "device": {"memory": "256MiB", "speed": 0.2}},
    "plan": {
        GENERATION: stage(2, 1, 2, "0-3", 8),
        REFERENCE: stage(1, 1, 4, "0-3", 4),
        TRAINING: stage(4, 1, 1, "0-3", 2),
    },
}

LAST_NODE = ("d2.0", "d3.0")
"""The endpoints on the second of two nodes with two devices each."""

END_S = 30.0
"""Seconds from the death to the end of the run: a collective whose peer is gone would wait for 60."""

LEFTOVER_S = 10.0
"""Seconds in which the processes of an ended cluster must be gone."""


def kill_a_worker(root: int) -> set[Process]:
    """SIGKILL a worker of the last node of the cluster below `root`; all processes of the cluster as they were before."""
    time.sleep(0.3)
    before = descendants(root)
    os.kill(workers_of_the_last_node(before)[0].pid, signal.SIGKILL)
    return before


def assert_nothing_left(before: set[Process]) -> None:
    """All processes of the cluster have ended, and no other one uses its folder."""
    folders = private_folders(before)
    assert folders
    deadline = time.monotonic() + LEFTOVER_S
    while (left := [p.command for p in before if p.alive] + users_of(folders)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not [folder for folder in folders if folder.exists()]


def watch_and_kill(launch: Launched) -> tuple[set[Process], float]:
    """Watch until the run ends, and kill a worker after its second step; the processes before, and when it was."""
    before, killed_at = set[Process](), 0.0
    for event in launch.watch():
        if isinstance(event, StepReport) and event.step >= 2 and not before:
            killed_at = time.monotonic()
            before = kill_a_worker(os.getpid())
    return before, killed_at


def test_killed_worker_ends_the_run_within_seconds_and_is_named(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with launched(make_job(ENDLESS), tmp_path) as launch:
        before, killed_at = watch_and_kill(launch)
        with pytest.raises(EndpointLost) as caught:
            launch.summary()
        ended_s = time.monotonic() - killed_at
    record_property("seconds_to_the_end", ended_s)
    assert ended_s < END_S
    assert caught.value.facts["endpoint"] in LAST_NODE
    assert_nothing_left(before)


def test_command_ends_with_exit_code_1_and_says_which_endpoint_and_what_to_do(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    job, out, err = tmp_path / "job.yaml", tmp_path / "out", tmp_path / "err"
    job.write_text(yaml.safe_dump(ENDLESS))
    arguments = [sys.executable, "-m", "nereus", "run", str(job), "--run-dir", str(tmp_path / "runs")]
    with out.open("w") as stdout, err.open("w") as stderr:
        command = subprocess.Popen(arguments, cwd=ROOT, stdout=stdout, stderr=stderr)
    try:
        wait_for(lambda: "step   2" in out.read_text() or command.poll() is not None, 120)
        killed_at = time.monotonic()
        before = kill_a_worker(command.pid)
        code = command.wait(END_S + 30)
        record_property("seconds_to_the_exit", time.monotonic() - killed_at)
    finally:
        command.kill()
        command.wait()
    assert code == 1, err.read_text()
    (line,) = err.read_text().splitlines()
    assert line.startswith("error: ")
    assert any(endpoint in line for endpoint in LAST_NODE)
    assert not list(tmp_path.glob("runs/*/summary.json"))
    assert_nothing_left(before)
    assert "; " in line, "the reason, and then what to do"


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"nothing in {timeout_s} s"
        time.sleep(0.1)
