"""A Ray cluster as a person starts one: `ray start` for the head and each node, on one machine, with a token, ports and
folders of its own. It stops no other cluster, and ends only what it has started.
"""

from __future__ import annotations

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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.actors.processes import Process, descendants, named, wait_until

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
START_S, STOP_S = 60.0, 20.0

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""No usage report, workers at normal priority, and a dead node noticed in about two seconds."""

TOKEN = "a-token-of-these-tests-0123456789abcdef"


@dataclass
class Started:
    """A cluster."""

    folder: Path
    gcs: int
    """The port of its head."""
    dashboard: int
    environment: dict[str, str]
    """For its processes and its clients."""
    stack: ExitStack
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The head first; each is the process of one `ray start --block`."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.gcs}"

    @property
    def home(self) -> Path:
        """The home directory of whoever uses it."""
        return self.folder / "home"

    @property
    def url(self) -> str:
        """Of the dashboard, which takes jobs."""
        return f"http://127.0.0.1:{self.dashboard}"

    def add_node(self, devices: int) -> subprocess.Popen[bytes]:
        """One more raylet with so many emulated devices."""
        self.start("--address", self.address, f'--resources={{"nereus_device": {devices}}}')
        return self.nodes[-1]

    def start(self, *options: str) -> None:
        """`ray start` with options, as a process of its own; returns when it is up."""
        command = [str(RAY), "start", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
        command += ["--object-store-memory=100000000", f"--dashboard-agent-listen-port={free_ports(1)[0]}"]
        # Raylets that share a folder unpack the same working directory over each other.
        command += [f"--temp-dir={self.folder / f'ray{len(self.nodes)}'}", *options]
        path = self.folder / f"node-{len(self.nodes)}.log"
        log = self.stack.enter_context(path.open("wb"))
        process = subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=log, stderr=log)
        self.stack.callback(end, process)
        self.nodes.append(process)
        # One after the other: two that start at once may take the same port.
        wait_until(lambda: "Ray runtime started" in path.read_text() or process.poll() is not None, START_S)
        assert process.poll() is None, path.read_text()

    def raylet(self, node: int) -> Process:
        """The raylet of a node."""
        return next(p for p in descendants(self.nodes[node].pid) if "/raylet/raylet" in p.command)

    def workers(self) -> list[Process]:
        """All processes of emulated devices."""
        return named({p for node in self.nodes for p in descendants(node.pid)}, "Worker")

    def run(self, *command: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command of ours or Ray's as a client of the cluster, to its end."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def nereus(self, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run `nereus` as a client of the cluster."""
        return self.run(sys.executable, "-m", "nereus", *arguments, timeout_s=timeout_s)


@contextmanager
def cluster(*devices: int, **environment: str) -> Iterator[Started]:
    """A head with so many emulated devices, and a node for each further number; gone with the context."""
    gcs, dashboard, client = free_ports(3)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="nereus-t-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "home").mkdir()
        (folder / "token").write_text(TOKEN)
        known = {
            **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
            **ENVIRONMENT,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_TMPDIR": str(folder),
            "HOME": str(folder / "home"),
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        started = Started(folder, gcs, dashboard, known, stack)
        head = ["--head", f"--port={gcs}", f"--ray-client-server-port={client}"]
        head += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
        started.start(*head, *([f'--resources={{"nereus_device": {devices[0]}}}'] if devices[0] else []))
        wait_until(lambda: _answers(f"{started.url}/api/version"), START_S)
        for number in devices[1:]:
            started.add_node(number)
        yield started


_GIVEN: set[int] = set()
"""Ports that were given out: who asked may not have bound them yet."""


def free_ports(number: int) -> list[int]:
    """Ports below those that Ray gives to its workers, none twice."""
    with ExitStack() as stack:
        ports: list[int] = []
        for port in range(9100 + os.getpid() % 400, 9990):
            if port in _GIVEN:
                continue
            with suppress(OSError):
                held = stack.enter_context(socket.socket())
                held.bind(("127.0.0.1", port))
                ports.append(port)
                _GIVEN.add(port)
            if len(ports) == number:
                return ports
    raise AssertionError("no free ports")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a node as its owner would, and all that it has started."""
    below = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_S)
    for child in below:
        if child.alive:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _answers(url: str) -> bool:
    """Whether a dashboard is there: one that asks for a token is."""
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, OSError):
        return False
