"""Where the declared devices of a job are on a Ray cluster. No Ray is started: nodes are what `ray.nodes()` would say."""

from __future__ import annotations

from typing import Any

import pytest

from actors.cluster import HEAD_RESOURCE, Seats, seats
from nereus.errors import UserError
from nereus.spec.cluster import Cluster

ONE_EACH = {"resources": {"nereus_device": 1}}


def cluster(nodes: int, each: int, kind: str = "cpu") -> Cluster:
    device = {"kind": "gpu"} if kind == "gpu" else {"memory": "64MiB"}
    return Cluster.model_validate({"nodes": nodes, "devices_per_node": each, "device": device})


def node(name: str, *, head: bool = False, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {**resources, **({HEAD_RESOURCE: 1.0} if head else {})}}


def test_whole_nodes_the_head_first_then_by_id() -> None:
    nodes = [node("b", nereus_device=2), node("a", nereus_device=2), node("h", head=True, nereus_device=2)]
    assert seats(cluster(2, 2), nodes) == Seats(("h", "h", "a", "a"), ONE_EACH)


def test_dead_and_small_nodes_are_passed_over() -> None:
    nodes = [
        node("h", head=True),
        node("a", alive=False, nereus_device=4),
        node("b", nereus_device=1),
        node("c", nereus_device=2),
    ]
    assert seats(cluster(1, 2), nodes).nodes == ("c", "c")


def test_emulated_nodes_share_one_that_offers_enough() -> None:
    nodes = [node("h", head=True, nereus_device=5), node("a", nereus_device=2)]
    assert seats(cluster(3, 2), nodes).nodes == ("h", "h", "h", "h", "a", "a")


def test_a_cluster_that_names_no_emulated_devices_has_them_on_its_head() -> None:
    assert seats(cluster(2, 2), [node("a"), node("h", head=True)]) == Seats(("h",) * 4, {})


def test_accelerators_need_a_node_each() -> None:
    nodes = [node("h", head=True, GPU=8), node("a", GPU=4)]
    assert seats(cluster(2, 4, "gpu"), nodes) == Seats(("h",) * 4 + ("a",) * 4, {"num_gpus": 1})
    with pytest.raises(UserError, match=r"cluster\.nodes: the job declares 2 nodes of 4 devices.*room for 1 with 4 of GPU"):
        seats(cluster(2, 4, "gpu"), nodes[:1])


def test_accelerators_are_never_made_up() -> None:
    with pytest.raises(UserError, match="room for 0"):
        seats(cluster(1, 1, "gpu"), [node("h", head=True)])


def test_too_few_emulated_devices_are_refused() -> None:
    with pytest.raises(UserError, match=r"room for 1 with 4 of nereus_device; start nodes with that resource"):
        seats(cluster(2, 4), [node("h", head=True, nereus_device=7)])
