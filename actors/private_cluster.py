"""A private Ray cluster on this machine: a head and emulated nodes, each with its share of the devices.

Its temp dir is its own, its ports are free ones, and it ends with the process that made it. It never looks for, joins or
stops another cluster.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actors.options import DEVICE_RESOURCE
from nereus.errors import JobFileError
from nereus.spec.cluster import Cluster as Declared

OBJECT_STORE_BYTES = 100 * 2**20
"""Shared memory of each emulated node: batches of token ids are small, and 75 MiB is the least that Ray takes."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""For the cluster's own processes: no usage report, no token on a cluster that only loopback reaches, workers at normal
priority (pacing needs their share of the cores), and a dead node noticed in about a second."""


@contextmanager
def private_cluster(declared: Declared) -> Iterator[None]:
    """A cluster with `declared.nodes` nodes, connected to on entry and gone on exit."""
    if declared.device.kind == "gpu" and declared.nodes > 1:
        allowed = "a private cluster of GPUs is this machine alone: 1, or name a cluster with --address"
        raise JobFileError("cluster.nodes", declared.nodes, allowed)
    folder = Path(tempfile.mkdtemp(prefix="nereus-", dir="/tmp"))
    temp_dir = folder / "ray"
    temp_dir.mkdir()
    # Ray notes the address of its latest cluster below RAY_TMPDIR: ours must not be found, nor replace another's.
    environment = {**ENVIRONMENT, "RAY_TMPDIR": str(folder)}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        import ray
        from ray.cluster_utils import Cluster

        options: dict[str, Any] = {
            "num_cpus": 2,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
        devices = (
            {"num_gpus": declared.devices_per_node}
            if declared.device.kind == "gpu"
            else {"resources": {DEVICE_RESOURCE: declared.devices_per_node}}
        )
        cluster = Cluster()
        try:
            cluster.add_node(**options, **devices, temp_dir=str(temp_dir))
            for _ in range(declared.nodes - 1):
                cluster.add_node(**options, **devices)
            ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False, namespace="nereus")
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
