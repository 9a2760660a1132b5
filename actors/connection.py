"""Connects to the Ray cluster that a command is about, and says in one sentence why it cannot.

nothing named           a private cluster, which ends with the command
--address HOST:PORT     that one
inside a Ray job        the one that runs it
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from actors.private_cluster import private_cluster
from nereus.errors import UserError
from nereus.spec.cluster import Cluster

CONNECT_TIMEOUT_S = 5.0
"""Seconds until an address without a listener is refused."""

RAY_ADDRESS, RAY_JOB_CONFIG = "RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What Ray sets in the environment of a job's entry point: where its cluster is, and what the job was submitted with."""

NAMESPACE = "nereus"
"""Of all our actors: `nereus controller` in one process finds what another has started."""

VERSIONS = re.compile(r"^\s*(Ray|Python): (\S+)$", re.MULTILINE)
"""The lines of Ray's complaint about versions: the cluster's two, then this process's."""

TOKEN_HINT = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that holds it"


def cluster_of_this_job() -> str | None:
    """The address of the cluster whose job this process is; None outside a Ray job."""
    return os.environ.get(RAY_ADDRESS) if RAY_JOB_CONFIG in os.environ else None


@contextmanager
def connected(declared: Cluster, address: str | None) -> Iterator[None]:
    """Connected to the cluster at `address`, or to a private one that lasts as long as the context."""
    with private_cluster(declared) if address is None else attached(address):
        yield


@contextmanager
def attached(address: str) -> Iterator[None]:
    """Connected to the cluster at `address`. Raises UserError where that cannot be, with what to do."""
    import ray

    _check_reachable(address)
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, namespace=NAMESPACE)
    except (RuntimeError, ConnectionError, ray.exceptions.AuthenticationError) as error:
        raise refused(address, error) from None
    try:
        yield
    finally:
        ray.shutdown()


def refused(address: str, error: Exception) -> UserError:
    """Why a cluster that answers does not take this process in, and what to do."""
    found = VERSIONS.findall(str(error))
    if len(found) == 4:
        theirs, ours = (dict(half) for half in (found[:2], found[2:]))
        return UserError(
            f"--address: the cluster at {address!r} runs Ray {theirs['Ray']} on Python {theirs['Python']}, and this is Ray "
            f"{ours['Ray']} on Python {ours['Python']}; install ray=={theirs['Ray']} on Python {theirs['Python']} here, or "
            "submit with `ray job submit`, which uses the cluster's own"
        )
    if isinstance(error, ConnectionError):
        return UserError(
            f"--address: {address!r} answers, but does not let this process in: it has no token or a wrong one, or there is "
            f"no head of a Ray cluster; {TOKEN_HINT}"
        )
    if "token" in str(error).lower():
        return UserError(f"--address: the cluster at {address!r} asks for a token, and there is none; {TOKEN_HINT}")
    return UserError(f"--address: the cluster at {address!r} does not take this process in: {str(error).splitlines()[0]}")


def _check_reachable(address: str) -> None:
    """Raises UserError soon where Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S):
            return
    except (OSError, ValueError) as error:
        raise UserError(
            f"--address: no Ray cluster answers at {address!r} ({error}); give HOST:PORT of its head, or `local`"
        ) from error
