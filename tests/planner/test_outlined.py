"""Plans of outlines on accelerators: the overlap graph's step, memory of what shares a device, and what growth does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nereus.planner.outlined import OutlinePlanner
from nereus.planner.posed import PlannedStep
from nereus.planner.rules import FREE, Rule, Rules
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import parse_outline
from tests.cost.accelerators import LLAMA_8B

SMALL = HfModel(
    replace(LLAMA_8B.decoder, num_layers=8, hidden_size=2048, num_heads=16, ffn_size=5632, vocab_size=32_000), ""
)
WORKLOAD = {"prompts_per_step": 64, "prompt_tokens": 256, "response_tokens": 512}


def planner(num_devices: int | None = None, *, rules: Rules = FREE, **changes: Any) -> OutlinePlanner:
    """A small model on one node of eight H100 of 24 GiB; what is named changes the outline."""
    declared = {
        "name": "o",
        "algorithm": "ppo",
        "models": {"actor": "a.json"},
        "workload": WORKLOAD,
        "nodes": [{"kind": "H100", "memory": "24GiB"}],
        "micro_batches": [1, 4],
    }
    outline = parse_outline({**declared, **changes})
    models = dict.fromkeys({stage.model for stage in outline.workflow.stages}, SMALL)
    return OutlinePlanner(outline=outline, models=models, learnt={}, num_devices=num_devices, rules=rules)


def best(found: OutlinePlanner) -> PlannedStep:
    (plan,), _ = found.best(1)
    return plan


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "remax"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_step_of_the_search_is_the_critical_path_of_the_overlap_graph(algorithm: str, asynchronous: bool) -> None:
    """Two computations of L_step that share no code: cliques over placements, and the longest path of the graph."""
    plan = best(planner(algorithm=algorithm, asynchronous=asynchronous))
    assert plan.seconds == pytest.approx(plan.overlap.seconds, rel=1e-9)


def test_devices_of_every_holder_are_its_layout() -> None:
    plan = best(planner())
    for holder, option in plan.options.items():
        assert len(set(plan.devices[holder])) == option.run.tp * option.run.pp * option.run.dp
        assert sum(option.memory.values()) == pytest.approx(option.resident_bytes + option.active_bytes)


def test_no_device_holds_more_than_it_may() -> None:
    found = planner()
    plan = best(found)
    for device in range(8):
        hosted = [plan.options[holder] for holder, devices in plan.devices.items() if device in devices]
        full = sum(o.resident_bytes for o in hosted) + max((o.active_bytes for o in hosted), default=0)
        assert full <= 0.9 * 24 * 2**30


def test_more_devices_and_more_memory_never_make_the_best_plan_slower() -> None:
    steps = [best(planner(count)).seconds for count in (4, 6, 8)]
    assert steps == sorted(steps, reverse=True)
    roomy = best(planner(nodes=[{"kind": "H100", "memory": "48GiB"}]))
    assert roomy.seconds <= steps[-1]


def test_asynchronous_generation_has_devices_of_its_own() -> None:
    plan = best(planner(asynchronous=True))
    others = {d for holder, devices in plan.devices.items() if holder != "actor_generation" for d in devices}
    assert others.isdisjoint(plan.devices["actor_generation"])


def test_holders_stay_on_one_kind() -> None:
    found = planner(nodes=[{"kind": "H100", "devices": 4, "memory": "24GiB"}, {"kind": "A100-40GB", "devices": 4}])
    plan = best(found)
    for holder, option in plan.options.items():
        assert {device // 4 for device in plan.devices[holder]} == {option.kind}


def test_runners_up_say_what_they_lose_by() -> None:
    plans, report = planner().best(3)
    assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)
    assert plans[0].lost == ""
    assert all("s per step slower" in plan.lost or "as fast" in plan.lost for plan in plans[1:])
    assert report.relaxed_not_placed == 0


def test_growing_responses_run_out_at_the_first_step_that_does_not_fit() -> None:
    found = planner()
    plan = best(found)
    growth = [(step, 512.0 + 64 * step) for step in range(200)]
    assert found.runs_out(plan, growth[:1]) is None
    short = found.runs_out(plan, growth)
    assert short is not None
    step = short[0]
    assert found.runs_out(plan, growth[:step]) is None
    assert found.grown(growth[step - 1][1]).outline.workload.longest_tokens == 2 * growth[step - 1][1]


def test_model_that_fits_nowhere_is_named() -> None:
    found = planner(1, nodes=[{"kind": "H100", "memory": "2GiB"}])
    assert found.best(1)[0] == ()
    assert "memory" in found.without_option()["actor_training"]


def test_what_divides_no_batch_is_not_put_down_to_memory() -> None:
    found = planner(micro_batches=[3])
    assert "micro-batch divides" in found.without_option()["reference_inference"]
    whole = Rule("every role takes five devices", lambda option, _: option.num_devices == 5)
    replica = planner(5, rules=Rules((whole,)))
    assert "every role takes five devices" in replica.without_option()["actor_training"]


def test_two_memory_sizes_of_a_kind_are_told_apart() -> None:
    found = planner(nodes=[{"kind": "H100", "devices": 4, "memory": "24GiB"}, {"kind": "H100", "devices": 4}])
    assert [found.pricer.kind_name(kind) for kind in range(2)] == ["H100 24GiB", "H100 80GiB"]
