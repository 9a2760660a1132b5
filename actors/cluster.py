"""Which Ray cluster a job runs on, and where on it each device is.

nothing named           a private cluster, which ends with the command
--address HOST:PORT     that one
inside a Ray job        the one that runs it
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from actors.options import DEVICE_RESOURCE
from actors.private_cluster import private_cluster
from nereus.errors import UserError
from nereus.spec.cluster import Cluster

CONNECT_TIMEOUT_S = 5.0
"""Seconds until an address without a listener is refused."""

RAY_ADDRESS, RAY_JOB_CONFIG = "RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What Ray sets in the environment of a job's entry point: where its cluster is, and what the job was submitted with."""

HEAD_RESOURCE = "node:__internal_head__"
"""The resource by which Ray marks the head node of a cluster."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Where the declared devices are on a Ray cluster."""

    nodes: tuple[str, ...]
    """The Ray node id of each device."""
    takes: Mapping[str, Any]
    """What the worker of one device takes of its node, as Ray's options say it; empty where the cluster names no devices."""


def cluster_of_this_job() -> str | None:
    """The address of the cluster whose job this process is; None outside a Ray job."""
    return os.environ.get(RAY_ADDRESS) if RAY_JOB_CONFIG in os.environ else None


@contextmanager
def connected(declared: Cluster, address: str | None) -> Iterator[None]:
    """Connected to the cluster at `address`, or to a private one that lasts as long as the context."""
    if address is None:
        with private_cluster(declared):
            yield
        return
    import ray

    _check_reachable(address)
    ray.init(address=address, logging_level="ERROR", log_to_driver=False, namespace="nereus")
    try:
        yield
    finally:
        ray.shutdown()


def head_node(nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The head node among what `ray.nodes` returns."""
    return next(node for node in nodes if node["Resources"].get(HEAD_RESOURCE))


def seats(cluster: Cluster, nodes: Sequence[dict[str, Any]]) -> Seats:
    """Whole nodes of `nodes` for the declared ones, the head first, then by id.

    An accelerator's node is a node. Emulated nodes may share one that offers enough; on a cluster that names no emulated
    devices at all, they are all on its head node. Raises UserError when the cluster offers too little.
    """
    gpu = cluster.device.kind == "gpu"
    resource, each = "GPU" if gpu else DEVICE_RESOURCE, cluster.devices_per_node
    alive = sorted((n for n in nodes if n["Alive"]), key=lambda n: (not n["Resources"].get(HEAD_RESOURCE), n["NodeID"]))
    offers = {node["NodeID"]: int(node["Resources"].get(resource, 0)) for node in alive}
    if not gpu and not any(offers.values()):
        return Seats((head_node(alive)["NodeID"],) * cluster.num_devices, {})
    fit = [node for node, offered in offers.items() for _ in range(min(1, offered // each) if gpu else offered // each)]
    if len(fit) < cluster.nodes:
        raise UserError(
            f"cluster.nodes: the job declares {cluster.nodes} nodes of {each} devices, and the Ray cluster has room for "
            f"{len(fit)} with {each} of {resource}; start nodes with that resource, or declare fewer"
        )
    takes = {"num_gpus": 1} if gpu else {"resources": {DEVICE_RESOURCE: 1}}
    return Seats(tuple(node for node in fit[: cluster.nodes] for _ in range(each)), takes)


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
