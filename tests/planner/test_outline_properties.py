"""What must hold of plans of outlines whatever is offered: experts, offload, TP over nodes, small heads, uneven nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.efficiency import UNSEEN, Efficiencies, Efficiency
from nereus.cost.operations import MOST, OpClass
from nereus.cost.priors import PRIORS
from nereus.planner.options import Option
from nereus.planner.outlined import OutlinePlanner
from nereus.spec.stages import ROLES
from tests.planner.test_expert_plans import MOE
from tests.planner.test_outlined import planner

SIXTY = {"prompts_per_step": 60, "prompt_tokens": 256, "response_tokens": 512}
"""60 sequences have divisors that are no powers of two, so that a device more changes which DP degrees there are."""

CASES = {
    "ppo": {"algorithm": "ppo"},
    "ppo async": {"algorithm": "ppo", "asynchronous": True},
    "grpo experts": {"algorithm": "grpo", "experts": True},
    "grpo experts async": {"algorithm": "grpo", "asynchronous": True, "experts": True},
}


def make(case: str, num_devices: int | None = None, *, nodes: list[dict[str, Any]], **changes: Any) -> OutlinePlanner:
    settings = {**CASES[case], "workload": SIXTY, "nodes": nodes, **changes}
    experts = settings.pop("experts", False)
    found = planner(num_devices, **settings)
    return replace(found, models=dict.fromkeys(found.models, MOE)) if experts else found


def node(memory: str, devices: int = 4, count: int = 1, host: str | None = "16GiB", kind: str = "H100") -> dict[str, Any]:
    return {"kind": kind, "memory": memory, "devices": devices, "count": count, "host_memory": host}


def seconds_of(found: OutlinePlanner) -> float:
    plans, report = found.best(1)
    assert report.relaxed_not_placed == 0
    return plans[0].seconds if plans else float("inf")


def assert_falls(steps: list[float]) -> None:
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < float("inf")


@pytest.mark.parametrize("case", CASES)
def test_more_memory_never_makes_the_best_outline_plan_slower(case: str) -> None:
    sizes = ("16GiB", "24GiB", "32GiB", "64GiB") if "experts" in case else ("8GiB", "10GiB", "14GiB", "32GiB")
    assert_falls([seconds_of(make(case, nodes=[node(memory, count=2)])) for memory in sizes])


@pytest.mark.parametrize("case", CASES)
def test_one_more_device_never_makes_the_best_outline_plan_slower(case: str) -> None:
    """A second node makes the weight sync dearer, priced by the slowest link of the pool: so before it, and after."""
    memory = "40GiB" if "experts" in case else "14GiB"
    pool = [node(memory, 4), node(memory, 3), node(memory, 2)]
    assert_falls([seconds_of(make(case, count, nodes=pool)) for count in range(2, 5)])
    assert_falls([seconds_of(make(case, count, nodes=pool)) for count in range(5, 10)])


@pytest.mark.parametrize("case", ["ppo", "grpo experts"])
def test_one_more_device_on_a_node_never_makes_the_best_outline_plan_slower(case: str) -> None:
    memory = "40GiB" if "experts" in case else "14GiB"
    sizes = ([3, 3], [4, 3], [4, 4], [5, 4], [5, 5])
    assert_falls([seconds_of(make(case, nodes=[node(memory, a), node(memory, b)])) for a, b in sizes])


def known(found: OutlinePlanner) -> dict[object, Option]:
    return {(o.holder, str(o), o.quantum, o.kind): o for table in found.options for o in table}


@pytest.mark.parametrize("case", ["ppo", "grpo experts"])
def test_latency_and_memory_rise_with_tokens(case: str) -> None:
    longer = [{**SIXTY, "response_tokens": tokens} for tokens in (256, 300, 512, 1024)]
    found = [make(case, nodes=[node("40GiB", count=2)], workload=workload) for workload in longer]
    steps = [seconds_of(one) for one in found]
    assert steps == sorted(steps)
    for short, long in pairwise(found):
        before, after = known(short), known(long)
        assert len(after) <= len(before)
        for name, option in after.items():
            assert all(option.seconds[stage] >= taken for stage, taken in before[name].seconds.items())
            assert sum(option.memory.values()) >= sum(before[name].memory.values())


@pytest.mark.parametrize("case", CASES)
def test_components_sum_to_the_peak_of_the_fullest_device(case: str) -> None:
    plan = make(case, nodes=[node("40GiB", count=2)]).best(1)[0][0]
    full = []
    for device in range(8):
        hosted = [plan.options[holder] for holder, devices in plan.devices.items() if device in devices]
        for one in hosted:
            assert sum(one.memory.values()) == pytest.approx(one.resident_bytes + one.active_bytes)
            idle = sum(other.resident_bytes for other in hosted if other is not one)
            full.append(sum(one.memory.values()) + idle)
    assert plan.peak_bytes[0] == pytest.approx(max(full))


def test_order_of_the_nodes_changes_nothing() -> None:
    groups = [node("14GiB", 4), node("14GiB", 2), node("20GiB", 4, kind="A100-40GB")]
    steps = {seconds_of(make("ppo", nodes=[groups[at] for at in order])) for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0))}
    assert len({round(step, 9) for step in steps}) == 1


def knowing(found: OutlinePlanner, model: AcceleratorModel) -> OutlinePlanner:
    """The same with this model of every role, and nothing told before."""
    return replace(found, learnt={("MI300X", role): model for role in ROLES}, told={})


def test_unknown_hardware_is_slower_than_its_datasheet_in_every_class() -> None:
    assert "MI300X" not in PRIORS
    assert all(0 < UNSEEN[op].value <= MOST.get(op, 1.0) for op in OpClass)
    perfect = AcceleratorModel(Efficiencies("MI300X", dict.fromkeys(OpClass, Efficiency(1.0, 0.1))))
    nodes = [node("40GiB", count=2, kind="MI300X")]
    guessed = make("grpo experts", nodes=nodes)
    best_case = known(knowing(guessed, perfect))
    for name, option in known(guessed).items():
        assert all(taken > best_case[name].seconds[stage] > 0 for stage, taken in option.seconds.items())


@pytest.mark.parametrize(
    ("op", "across"),
    [
        (OpClass.OFFLOAD, False),
        (OpClass.EXPERTS_NODE, False),
        (OpClass.EXPERTS_NETWORK, False),
        (OpClass.SEND_NETWORK, False),
        (OpClass.SCATTER_NETWORK, False),
        (OpClass.TP_NETWORK, True),
        (OpClass.TP_LATENCY_NETWORK, True),
    ],
)
def test_no_message_is_free_before_it_was_measured(op: OpClass, across: bool) -> None:
    """If a class cost nothing, some options would be faster, and none slower."""
    free = AcceleratorModel(Efficiencies("MI300X", {**UNSEEN, op: Efficiency(1e12, 0.1)}))
    found = replace(make("grpo experts", nodes=[node("40GiB", count=2, kind="MI300X")]), across=across)
    cheaper = known(knowing(found, free))
    gains = [sum(o.seconds.values()) - sum(cheaper[name].seconds.values()) for name, o in known(found).items()]
    assert min(gains) >= -1e-9
    assert max(gains) > 1e-6
