"""Placement quanta: what a candidate promises of its links a placement keeps, and TP crosses nodes as a last resort."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.efficiency import UNSEEN, Efficiencies, Efficiency
from nereus.cost.operations import OpClass
from nereus.cost.training import tp_amounts
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.quanta import across_nodes, inside_nodes
from nereus.spec.hardware import ACCELERATORS, Hardware
from tests.cost.accelerators import LLAMA_8B, execution
from tests.planner.test_outlined import best, planner

H100 = ACCELERATORS["H100"]
FREE_MESSAGES = {op: Efficiency(1e12, 0.1) for op in (OpClass.SEND_NETWORK, OpClass.REDUCE_NETWORK, OpClass.SCATTER_NETWORK)}


def quanta(num_nodes: int = 4, *, trains: bool = True, **degrees: Any) -> list[int]:
    return [quantum for quantum, _ in inside_nodes(execution(**degrees), num_nodes, trains=trains)]


def test_one_node_has_only_neighbours() -> None:
    assert quanta(1, tp=2, pp=2, dp=2) == [2]


def test_forward_passes_have_a_quantum_for_each_link_of_their_pipeline() -> None:
    assert quanta(tp=2, dp=4, trains=False) == [2]
    assert quanta(tp=2, pp=2, dp=4, trains=False) == [2, 4]
    assert quanta(tp=4, pp=4, dp=2, trains=False) == [4]


def test_training_has_a_quantum_for_each_number_of_replicas_that_share_a_node() -> None:
    assert quanta(tp=2, dp=16) == [2, 4, 8]
    assert quanta(tp=2, dp=4) == [2, 4, 8]
    assert quanta(tp=1, dp=6) == [1, 2, 6]
    assert quanta(tp=2, pp=2, dp=4) == [2, 4, 8]


def test_coarser_quantum_is_never_slower() -> None:
    model = AcceleratorModel(Efficiencies("H100"))
    for degrees in ({"dp": 16}, {"tp": 2, "pp": 2, "dp": 8}, {"pp": 4, "dp": 2, "zero1": True}, {"dp": 6}):
        held = inside_nodes(execution(**degrees), 4, trains=True)
        seconds = [model.training(run, LLAMA_8B).seconds for _, run in held]
        assert seconds == sorted(seconds, reverse=True)
        assert len(set(seconds)) == len(seconds) > 1


def test_only_messages_tell_the_quanta_of_a_run_apart() -> None:
    """With networks and nodes that cost nothing, all quanta take the same time."""
    values = {**UNSEEN, **FREE_MESSAGES, **{op: Efficiency(1e12, 0.1) for op in OpClass if op.value.endswith("_node")}}
    model = AcceleratorModel(Efficiencies("H100", values))
    held = inside_nodes(execution(tp=2, pp=2, dp=8), 4, trains=True)
    seconds = [model.training(run, LLAMA_8B).seconds for _, run in held]
    assert seconds == pytest.approx([seconds[0]] * len(seconds), rel=1e-6)


def test_every_plan_keeps_its_quanta() -> None:
    found = planner(
        nodes=[{"kind": "H100", "memory": "24GiB", "devices": 4, "count": 2}, {"kind": "H100", "memory": "24GiB"}]
    )
    plans, report = found.best(4)
    assert report.relaxed_not_placed == 0
    node_of = {device: node for node, devices in enumerate([range(4), range(4, 8), range(8, 16)]) for device in devices}
    for plan in plans:
        for holder, devices in plan.devices.items():
            assert all(count % plan.options[holder].quantum == 0 for count in Counter(map(node_of.get, devices)).values())


# --- TP over several nodes ---------------------------------------------------------------------------------------------


def test_tp_over_nodes_lies_in_the_largest_equal_parts_that_nodes_have_room_for() -> None:
    sixteen = execution(tp=16)
    assert [quantum for quantum, _ in across_nodes(sixteen, [8, 8])] == [8]
    assert [quantum for quantum, _ in across_nodes(sixteen, [8, 6, 3])] == [2, 4, 8]
    assert [quantum for quantum, _ in across_nodes(execution(tp=12), [8])] == [6]
    assert list(across_nodes(execution(tp=4), [8])) == []


def test_tp_over_nodes_is_priced_by_the_ways_out_of_its_parts() -> None:
    """A ring all-reduce: 2 (t - 1) / t of the bytes leave each part, over as many network links as it has devices."""
    for quantum, run in across_nodes(execution(tp=16), [8, 4]):
        size = tp_amounts(run, 1e9, 1)[OpClass.TP_NETWORK]
        assert size == pytest.approx(2 * 15 / 16 * 1e9 * 2 / (H100.network_bytes_s * quantum))
    inside = execution(tp=8, hardware=Hardware(H100, 8))
    assert OpClass.TP_NETWORK not in tp_amounts(inside, 1e9, 1)


LONG = {"prompts_per_step": 8, "prompt_tokens": 256, "response_tokens": 4096, "longest_response_tokens": 32_768}


def long_planner(memory: str) -> OutlinePlanner:
    """Sequences of 33,000 tokens on nodes of two devices."""
    nodes = [{"kind": "H100", "memory": memory, "devices": 2, "count": 8}]
    return planner(algorithm="grpo", workload=LONG, nodes=nodes, micro_batches=[1])


def test_tp_crosses_nodes_only_where_nothing_else_fits() -> None:
    roomy, tight = best(long_planner("48GiB")), best(long_planner("7GiB"))
    assert all(option.run.tp <= 2 for option in roomy.options.values())
    crossing = [option for option in tight.options.values() if option.run.tp > 2]
    assert crossing
    assert all(option.quantum == 2 and option.run.hardware.devices_per_node == 2 for option in crossing)


def test_offering_tp_over_nodes_to_all_finds_nothing_slower() -> None:
    """The rule decides, not the price: with the choice open the search may only gain."""
    for memory in ("48GiB", "7GiB"):
        found = long_planner(memory)
        assert best(replace(found, across=True)).seconds <= best(found).seconds


def test_pinned_tp_may_cross_nodes() -> None:
    pinned = planner(
        nodes=[{"kind": "H100", "memory": "24GiB", "devices": 2, "count": 4}], pins={"actor_training": {"tp": 4}}
    )
    option = best(pinned).options["actor_training"]
    assert (option.run.tp, option.quantum) == (4, 2)
