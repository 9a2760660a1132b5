"""Plans of outlines whose nodes have memory for what is offloaded: found where it helps, and bounded by the hosts."""

from __future__ import annotations

from typing import Any

import pytest

from nereus.cost.components import Component
from nereus.cost.execution import Offload
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.posed import PlannedStep
from tests.planner.test_outlined import best, planner

TIGHT = "5GiB"
"""Of each of four devices: too little for the four models of PPO with their optimizers."""


def on_nodes(memory: str = TIGHT, count: int = 2, **node: Any) -> OutlinePlanner:
    return planner(nodes=[{"kind": "H100", "memory": memory, "devices": 4, "count": count, **node}])


def offloaded(found: OutlinePlanner, plan: PlannedStep) -> list[int]:
    """Bytes on the host of each node of four."""
    nodes = [0] * (len(found.problem.pool.nodes))
    for holder, devices in plan.devices.items():
        for device in devices:
            nodes[device // 4] += plan.options[holder].host_bytes
    return nodes


def test_without_host_memory_nothing_is_offloaded() -> None:
    found = on_nodes("24GiB")
    assert {option.run.offload for table in found.options for option in table} == {Offload.NONE}


def test_offloading_is_offered_beside_everything_else_and_loses_nothing() -> None:
    without, beside = on_nodes("24GiB"), on_nodes("24GiB", host_memory="1TiB")
    assert {option.run.offload for table in beside.options for option in table} == set(Offload)
    assert sum(map(len, beside.options)) > sum(map(len, without.options))
    assert best(beside).seconds <= best(without).seconds


def test_plan_fits_by_offloading_where_it_would_not() -> None:
    assert on_nodes(count=1).best(1)[0] == ()
    found = on_nodes(count=1, host_memory="200GiB")
    plan = best(found)
    assert any(option.run.offload is not Offload.NONE for option in plan.options.values())
    assert max(offloaded(found, plan)) <= 200 * 2**30
    for device in range(4):
        hosted = [plan.options[holder] for holder, devices in plan.devices.items() if device in devices]
        full = sum(o.resident_bytes for o in hosted) + max((o.active_bytes for o in hosted), default=0)
        assert full <= 0.9 * 5 * 2**30


def test_host_memory_bounds_what_is_offloaded_and_more_of_it_never_slows() -> None:
    steps = []
    for gib in (2, 7, 10, 40):
        found = on_nodes(count=1, host_memory=f"{gib}GiB")
        plans, _ = found.best(1)
        steps.append(plans[0].seconds if plans else float("inf"))
        assert all(max(offloaded(found, plan)) <= gib * 2**30 for plan in plans)
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 4


def test_slower_host_link_never_makes_the_plan_faster() -> None:
    slow, fast = (best(on_nodes(count=1, host_memory="200GiB", host_bytes_s=rate)).seconds for rate in ("4GB", "64GB"))
    assert slow > fast


def test_parameters_on_the_host_stay_on_no_device() -> None:
    pins = {"reference_inference": {"offload": "parameters"}, "actor_training": {"offload": "optimizer"}}
    found = planner(nodes=[{"kind": "H100", "memory": "24GiB", "host_memory": "200GiB"}], pins=pins)
    plan = best(found)
    reference, actor = plan.options["reference_inference"], plan.options["actor_training"]
    assert reference.resident_bytes == 0
    assert reference.host_bytes == pytest.approx(reference.memory[Component.PARAMETERS], rel=1e-6)
    assert actor.memory[Component.OPTIMIZER] == 0
    assert actor.resident_bytes == actor.memory[Component.PARAMETERS]
    assert "offload optimizer" in str(actor)
