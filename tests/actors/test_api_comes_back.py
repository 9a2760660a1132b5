"""The API of the controller dies, and the controller does: it is served again, at the same place, by nobody's hand."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator

import pytest

from tests.actors.clusters import Started, cluster, free_ports
from tests.actors.processes import descendants, named, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

BACK_S = 120.0
"""Ray starts an actor anew in some seconds; a machine that does other work takes longer."""


@pytest.fixture(scope="module")
def ray() -> Iterator[Started]:
    with cluster(2) as started:
        yield started


@pytest.fixture(scope="module")
def url(ray: Started) -> str:
    (port,) = free_ports(1)
    ran = ray.nereus("controller", "start", "--address", ray.address, "--port", str(port))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split("API at ")[1].split()[0]


def is_served(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("victims", ["Api", "Controller", "(Controller|Api)"])
def test_api_is_served_again_after_a_death(ray: Started, url: str, victims: str) -> None:
    wait_until(lambda: is_served(url), BACK_S)
    killed = named(descendants(ray.nodes[0].pid), victims)
    assert killed
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(process.alive for process in killed), BACK_S)
    wait_until(lambda: is_served(url), BACK_S)
