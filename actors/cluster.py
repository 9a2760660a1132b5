"""Where on a Ray cluster the devices of a job are: its nodes, what each offers, and the first seats."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.options import DEVICE_RESOURCE
from nereus.emu.plan import DeviceId
from nereus.errors import UserError
from nereus.monitor.ray_nodes import head_node, nodes_of
from nereus.policy.seating import Node, PoolDevice, Shape, all_seated, free_devices, seated
from nereus.spec.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Ground:
    """What a Ray cluster has for a job."""

    nodes: tuple[Node, ...]
    takes: Mapping[str, Any]
    """What the worker of one device takes of its node, as Ray's options say it; empty where the cluster names no devices."""


def devices_of(resource: str) -> tuple[Node, ...]:
    """The nodes of the connected cluster with what each offers of a resource, as Ray tells them now."""
    import ray

    return nodes_of(ray.nodes(), _draining(), resource)


def _draining() -> Mapping[str, int]:
    """When nodes that drain are gone, as Ray tells it. A ray:// client cannot ask; the job's head asks soon after."""
    from ray._private.client_mode_hook import client_mode_should_convert
    from ray._private.state import state

    return {} if client_mode_should_convert() else state.get_draining_nodes()


def resource_of(cluster: Cluster) -> str:
    """The Ray resource that is one device of this kind."""
    return "GPU" if cluster.device.kind == "gpu" else DEVICE_RESOURCE


def shape_of(cluster: Cluster) -> Shape:
    """The declared nodes."""
    return Shape(cluster.nodes, cluster.devices_per_node, cluster.device.kind == "gpu")


def ground(cluster: Cluster) -> Ground:
    """The nodes of the connected cluster, as Ray tells them now."""
    import ray

    return ground_of(cluster, ray.nodes(), _draining())


def ground_of(cluster: Cluster, rows: Sequence[Mapping[str, Any]], draining: Mapping[str, int]) -> Ground:
    """The same, from what `ray.nodes()` returns. On a cluster that names no emulated devices they are all on its head."""
    gpu, nodes = cluster.device.kind == "gpu", nodes_of(rows, draining, resource_of(cluster))
    if not gpu and not any(node.devices for node in nodes):
        return Ground((Node(id=head_node(rows)["NodeID"], devices=cluster.num_devices),), {})
    return Ground(nodes, {"num_gpus": 1} if gpu else {"resources": {DEVICE_RESOURCE: 1}})


def first_seats(cluster: Cluster, nodes: Sequence[Node], needed: Collection[DeviceId]) -> dict[DeviceId, PoolDevice]:
    """Where a job starts: all devices that it needs, and as many of the others as find a place.

    Raises UserError when the cluster offers too little.
    """
    shape, free = shape_of(cluster), free_devices(nodes, ())
    found = all_seated(shape, {}, free, sorted(needed))
    if found is None:
        each, resource = cluster.devices_per_node, resource_of(cluster)
        fit = sum(min(1, n.devices // each) if shape.apart else n.devices // each for n in nodes if not n.is_leaving)
        raise UserError(
            f"cluster.nodes: the job declares {cluster.nodes} nodes of {each} devices, and the Ray cluster has room for "
            f"{fit} with {each} of {resource}; start nodes with that resource, or declare fewer"
        )
    return {**found, **seated(shape, found, free_devices(nodes, found.values()), shape.places)}
