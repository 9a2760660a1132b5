"""Where the declared devices of a job are on a Ray cluster. No Ray is started: nodes are what `ray.nodes()` would say."""

from __future__ import annotations

from typing import Any

import pytest

from actors.cluster import Ground, first_seats, ground_of
from nereus.errors import UserError
from nereus.monitor.ray_nodes import HEAD_RESOURCE
from nereus.policy.seating import Node
from nereus.spec.cluster import Cluster

ONE_EACH = {"resources": {"nereus_device": 1}}


def cluster(nodes: int, each: int, kind: str = "cpu") -> Cluster:
    device = {"kind": "gpu"} if kind == "gpu" else {"memory": "64MiB"}
    return Cluster.model_validate({"nodes": nodes, "devices_per_node": each, "device": device})


def node(name: str, *, head: bool = False, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {**resources, **({HEAD_RESOURCE: 1.0} if head else {})}}


def nodes_of_seats(declared: Cluster, nodes: list[dict[str, Any]]) -> str:
    """The node of each device, where the job needs them all."""
    found = ground_of(declared, nodes, {})
    seats = first_seats(declared, found.nodes, range(declared.num_devices))
    assert len(set(seats.values())) == declared.num_devices, "a device was given twice"
    return "".join(seats[place].node for place in range(declared.num_devices))


def test_whole_nodes_the_head_first_then_by_id() -> None:
    nodes = [node("b", nereus_device=2), node("a", nereus_device=2), node("h", head=True, nereus_device=2)]
    assert nodes_of_seats(cluster(2, 2), nodes) == "hhaa"
    assert ground_of(cluster(2, 2), nodes, {}).takes == ONE_EACH


def test_dead_and_small_nodes_are_passed_over() -> None:
    nodes = [
        node("h", head=True),
        node("a", alive=False, nereus_device=4),
        node("b", nereus_device=1),
        node("c", nereus_device=2),
    ]
    assert nodes_of_seats(cluster(1, 2), nodes) == "cc"


def test_emulated_nodes_share_one_that_offers_enough() -> None:
    nodes = [node("h", head=True, nereus_device=5), node("a", nereus_device=2)]
    assert nodes_of_seats(cluster(3, 2), nodes) == "hhhhaa"


def test_a_cluster_that_names_no_emulated_devices_has_them_on_its_head() -> None:
    found = ground_of(cluster(2, 2), [node("a"), node("h", head=True)], {})
    assert found == Ground((Node(id="h", devices=4),), {})


def test_accelerators_need_a_node_each() -> None:
    nodes = [node("h", head=True, GPU=8), node("a", GPU=4)]
    assert nodes_of_seats(cluster(2, 4, "gpu"), nodes) == "hhhhaaaa"
    assert ground_of(cluster(2, 4, "gpu"), nodes, {}).takes == {"num_gpus": 1}
    with pytest.raises(UserError, match=r"cluster\.nodes: the job declares 2 nodes of 4 devices.*room for 1 with 4 of GPU"):
        nodes_of_seats(cluster(2, 4, "gpu"), nodes[:1])


def test_accelerators_are_never_made_up() -> None:
    with pytest.raises(UserError, match="room for 0"):
        nodes_of_seats(cluster(1, 1, "gpu"), [node("h", head=True)])


def test_too_few_emulated_devices_are_refused() -> None:
    with pytest.raises(UserError, match=r"room for 1 with 4 of nereus_device; start nodes with that resource"):
        nodes_of_seats(cluster(2, 4), [node("h", head=True, nereus_device=7)])


def test_a_job_that_adapts_starts_on_what_its_first_plan_needs() -> None:
    found = ground_of(cluster(2, 4), [node("h", head=True, nereus_device=6)], {})
    assert sorted(first_seats(cluster(2, 4), found.nodes, range(4))) == [0, 1, 2, 3, 4, 5]


def test_a_node_that_is_drained_is_leaving_until_its_end() -> None:
    rows = [node("h", head=True, nereus_device=1), node("a", nereus_device=1), node("b", nereus_device=1)]
    nodes = ground_of(cluster(1, 1), rows, {"a": 2500, "b": 0}).nodes
    assert nodes == (
        Node(id="h", devices=1),
        Node(id="a", devices=1, is_leaving=True, gone_s=2.5),
        Node(id="b", devices=1, is_leaving=True),
    )
