"""`ray job submit -- <interpreter> -m nereus run JOB` on a cluster that is not ours: it runs there, and leaves no actor.

one head with a dashboard -> a job that ends, and a job that is stopped -> what it printed, its run folder, Ray's own list
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.actors.processes import descendants, named, wait_until

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
START_S, STOP_S, JOB_S = 60.0, 20.0, 120.0

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}


@dataclass(frozen=True)
class Local:
    """A local head, as a person would start one."""

    url: str
    """Of its dashboard, which takes jobs."""
    home: Path
    """The home directory of its jobs."""
    process: subprocess.Popen[bytes]
    environment: dict[str, str]

    def submit(self, *options: str, wait: bool = True) -> str:
        """Submit the quickstart; everything that the command printed."""
        submit = [RAY, "job", "submit", "--address", self.url, "--working-dir", ".", *([] if wait else ["--no-wait"])]
        entry = [
            "--submission-id",
            self.name_next(),
            "--",
            sys.executable,
            "-m",
            "nereus",
            "run",
            "examples/quickstart.yaml",
        ]
        done = subprocess.run(
            [*submit, *entry, *options],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=JOB_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def name_next(self) -> str:
        return f"quickstart-{len(self.run_folders())}"

    def run_folders(self) -> list[Path]:
        return sorted((self.home / ".nereus" / "runs").glob("*"))

    def stop(self, submission: str) -> None:
        subprocess.run(
            [RAY, "job", "stop", "--address", self.url, submission],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=JOB_S,
            check=True,
        )

    def living_actors(self) -> list[str]:
        """Classes of the actors that Ray holds to be alive, but for its own, which supervise the jobs."""
        with urllib.request.urlopen(f"{self.url}/api/v0/actors?limit=1000", timeout=START_S) as answer:
            rows = json.load(answer)["data"]["result"]["result"]
        return [row["class_name"] for row in rows if row["state"] != "DEAD" and row["class_name"] != "JobSupervisor"]


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    """A head that names no emulated devices, with ports and folders of its own."""
    dashboard, gcs, agent, client = _free_ports(4)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="nereus-job-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        home = folder / "home"
        home.mkdir()
        environment = {**os.environ, **ENVIRONMENT, "RAY_TMPDIR": str(folder), "HOME": str(home)}
        start = [RAY, "start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1", f"--port={gcs}"]
        start += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
        start += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
        start += [f"--temp-dir={folder / 'ray'}", "--object-store-memory=100000000"]
        process = subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(_end, process)
        found = Local(f"http://127.0.0.1:{dashboard}", home, process, environment)
        wait_until(lambda: _answers(f"{found.url}/api/version"), START_S)
        yield found


def test_a_submitted_job_runs_on_the_cluster_that_runs_it_and_leaves_no_actor(local: Local) -> None:
    printed = local.submit("--steps", "2", "--json")
    summary = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    assert summary["steps"] == 2
    (folder,) = local.run_folders()
    assert json.loads((folder / "summary.json").read_text()) == summary
    below = descendants(local.process.pid)
    assert not named(below, "Worker"), "emulated devices outlived the job"
    wait_until(lambda: not local.living_actors(), STOP_S)


def test_a_stopped_job_leaves_no_actor(local: Local) -> None:
    submission = local.name_next()
    before = set(local.run_folders())
    local.submit(wait=False)
    wait_until(lambda: set(local.run_folders()) - before, START_S)
    (folder,) = set(local.run_folders()) - before
    wait_until(lambda: '"step"' in "".join(log.read_text() for log in folder.glob("events.jsonl")), START_S)
    wait_until(lambda: len(named(descendants(local.process.pid), "Worker")) >= 4, START_S)
    local.stop(submission)
    wait_until(lambda: not local.living_actors(), STOP_S)
    wait_until(lambda: not named(descendants(local.process.pid), "Worker"), STOP_S)


def _free_ports(number: int) -> list[int]:
    """Ports below those that Ray gives to its workers."""
    with ExitStack() as stack:
        ports: list[int] = []
        for port in range(9100, 9900):
            with suppress(OSError):
                held = stack.enter_context(socket.socket())
                held.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == number:
                return ports
    raise AssertionError("no free ports")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the head as its owner would, and all that it has started."""
    below = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_S)
    for child in below:
        if child.alive:
            os.kill(child.pid, signal.SIGKILL)
    process.kill()
    process.wait()
