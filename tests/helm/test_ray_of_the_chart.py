"""A real head and a real worker, started by the command lines that KubeRay makes of what the chart renders.

rendered rayStartParams + ports of our own -> bash -c "ray start ..." -> what probes and `helm test` ask, and Ray's list
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.actors.processes import descendants, wait_until
from tests.deploy.programs import program
from tests.helm.charts import containers, rendered, the, workers

pytestmark = pytest.mark.ray

START_S = 120.0
TOKEN = "a-token-of-the-chart-s-tests-0123456789"
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of loopback, instead of those that a pod has for itself."""

    gcs: int
    dashboard: int
    client: int
    head_agent: int
    worker_agent: int


def command(kind: str, params: Mapping[str, str]) -> list[str]:
    """How KubeRay starts Ray: options unquoted in a shell's command line."""
    options = " ".join(f"--{name}" if value == "true" else f"--{name}={value}" for name, value in params.items())
    return ["/bin/bash", "-c", "--", f"ray start {kind} {options}"]


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    """A head and a worker; both end with the module."""
    objects = rendered(program("helm4"))
    head = dict(the(objects, "RayCluster")["spec"]["headGroupSpec"]["rayStartParams"])
    worker = dict(workers(objects)["rayStartParams"])
    found = Ports(*free_ports(5))
    alone = {"node-ip-address": "127.0.0.1", "object-store-memory": "80000000", "block": "true"}
    own = {"port": str(found.gcs), "dashboard-port": str(found.dashboard), "ray-client-server-port": str(found.client)}
    agents = [{"dashboard-agent-listen-port": str(port)} for port in (found.head_agent, found.worker_agent)]
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="nereus-hc-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "HOME": str(folder)}
        environment |= {"RAY_USAGE_STATS_ENABLED": "0"}

        def start(kind: str, *params: dict[str, str]) -> None:
            merged = {name: value for part in params for name, value in part.items()}
            process = subprocess.Popen(
                command(kind, merged), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(end, process)

        start("--head", head, own, alone, agents[0], {"temp-dir": str(folder / "ray")})
        wait_until(lambda: status(f"http://127.0.0.1:{found.head_agent}/api/healthz") == 200, START_S)
        start("", worker, alone, agents[1], {"address": f"127.0.0.1:{found.gcs}", "num-cpus": "1"})
        wait_until(lambda: status(f"http://127.0.0.1:{found.worker_agent}/api/healthz") == 200, START_S)
        yield found


def free_ports(number: int) -> list[int]:
    """Ports below those that Ray gives to its workers."""
    with ExitStack() as stack:
        found: list[int] = []
        for port in range(9300, 9900):
            with suppress(OSError):
                held = stack.enter_context(socket.socket())
                held.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == number:
                return found
    raise AssertionError("no free ports")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a node, and all that it has started."""
    below = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    for child in below:
        if child.alive:
            os.kill(child.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def status(url: str, token: str = "") -> int:
    """The status of an answer; 0 where nobody answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError):
        return 0


def test_probes_of_the_chart_are_answered_without_a_token(ports: Ports) -> None:
    probed = {
        container[probe]["httpGet"]["path"]
        for _, container in containers(rendered(program("helm4")))
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        if probe in container
    }
    assert len(probed) == 1
    for agent in (ports.head_agent, ports.worker_agent):
        assert {status(f"http://127.0.0.1:{agent}{path}") for path in probed} == {200}


def test_helm_test_s_question_to_the_head_is_answered_and_jobs_ask_for_the_token(ports: Ports) -> None:
    dashboard = f"http://127.0.0.1:{ports.dashboard}"
    (pod,) = [found for found in rendered(program("helm4")) if found["kind"] == "Pod"]
    assert '"/api/gcs_healthz"' in pod["spec"]["containers"][0]["args"][0]
    assert status(f"{dashboard}/api/gcs_healthz") == 200
    assert status(f"{dashboard}/api/jobs/") == 401
    assert status(f"{dashboard}/api/jobs/", "not-the-token") in (401, 403)
    assert status(f"{dashboard}/api/jobs/", TOKEN) == 200


def test_head_offers_no_cpus_and_the_worker_its_devices(ports: Ports) -> None:
    url = f"http://127.0.0.1:{ports.dashboard}/api/v0/nodes?detail=true"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        rows = json.load(answer)["data"]["result"]["result"]
    by_head = {row["is_head_node"]: row["resources_total"] for row in rows}
    assert by_head[True].get("CPU", 0) == 0
    assert by_head[False]["nereus_device"] == 4
    assert "nereus_device" not in by_head[True]
