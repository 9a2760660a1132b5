"""What each actor asks of Ray. One place, so that nothing is declared in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.lanes import LANES
from nereus.monitor.ray_nodes import HEAD_RESOURCE

DEVICE_RESOURCE = "nereus_device"
"""The Ray resource of an emulated CPU device. Accelerators are Ray's own `GPU`."""

WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""A worker computes on one thread: pacing reads the CPU time of that thread. Its tensors lie in huge pages where the machine
has them: into fresh ones state arrives nearly as fast as into used ones, into fresh small pages at half the speed."""


OF_HEAD = 1e-4
"""Share of the head's own resource, of which it has 1, that an actor takes: Ray's smallest, for ten thousand of them."""


def worker_options(name: str, node_id: str, takes: Mapping[str, Any]) -> dict[str, Any]:
    """A worker takes one device of its node, in whatever resource `takes` says."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {
        "name": name,
        "num_cpus": 0,
        **takes,
        "concurrency_groups": LANES,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        "runtime_env": {"env_vars": WORKER_ENVIRONMENT},
        "max_restarts": 0,
    }


def head_options(lanes: dict[str, int] | None = None, *, name: str | None = None, restarts: bool = False) -> dict[str, Any]:
    """An actor of the control plane: on the head node, without a device. Calls in flight are made again after a restart.

    It asks for the head, not for a node: where the head is replaced and Ray's state survives it, so does the actor.
    """
    return {
        "num_cpus": 0,
        "resources": {HEAD_RESOURCE: OF_HEAD},
        "max_restarts": -1 if restarts else 0,
        "max_task_retries": -1 if restarts else 0,
        **({"name": name} if name else {}),
        **({"concurrency_groups": lanes} if lanes else {}),
    }
