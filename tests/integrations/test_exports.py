"""What all exports share: keys that the framework has, one pool of equal nodes, and plans found under its rules."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from nereus.errors import UserError
from nereus.integrations.exports import EXPORTS, exported
from nereus.integrations.framework import Framework
from nereus.planner.options import Option
from nereus.planner.outlined import OutlinePlanner
from nereus.spec.hardware import ACCELERATORS
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.spec.weights import num_parameters
from tests.integrations.outlines import GRPO, NODES, WORKLOAD, lines, outline, planned, planner, shaped

FRAMEWORKS = pytest.mark.parametrize("framework", EXPORTS.values(), ids=EXPORTS)


@FRAMEWORKS
@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "remax"])
def test_only_keys_that_the_framework_has_are_set(framework: Framework, algorithm: str) -> None:
    reward = {"reward": "rule"} if framework.name == "nemo-rl" else {}
    asked = outline(algorithm=algorithm, models={"actor": "a.json", **reward})
    if framework.forbids(asked):
        assert algorithm in framework.forbids(asked)
        return
    assert set(lines(framework, asked)) <= framework.keys


@FRAMEWORKS
def test_every_role_has_the_whole_pool(framework: Framework) -> None:
    assert {len(set(devices)) for devices in planned(framework, outline(**GRPO)).devices.values()} == {8}


@FRAMEWORKS
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"asynchronous": True}, "pools of its own"),
        ({"nodes": [*NODES, {"kind": "H100", "devices": 8}]}, "equal nodes"),
        ({"nodes": [{"kind": "H100"}, {"kind": "A100-80GB"}]}, "equal nodes"),
    ],
)
def test_pool_that_roles_cannot_share_is_named(framework: Framework, changes: dict[str, Any], reason: str) -> None:
    assert reason in framework.forbids(outline(**GRPO, **changes))
    assert framework.forbids(outline(**GRPO)) == ""


@FRAMEWORKS
def test_plan_is_the_fastest_of_all_that_keep_the_rules(framework: Framework) -> None:
    """Brute force over the options: on one pool all roles wait for each other, and for the weight sync."""
    found = planner(framework, outline(**GRPO, micro_batches=[2, 8]))
    legal = [[o for o in table if framework.rules.allow(o, found.pricer)] for table in found.priced]
    steps = []
    for options in product(*legal):
        full = sum(o.resident_bytes for o in options) + max(o.active_bytes for o in options)
        chosen = {option.holder: option for option in options}
        if full <= found.pricer.usable_bytes(0) and not framework.rules.broken(chosen, found.pricer):
            steps.append(sum(sum(o.seconds.values()) for o in options) + _sync_seconds(found, chosen))
    assert planned(framework, found.outline).seconds == pytest.approx(min(steps), rel=1e-6)  # the search syncs no norms


def _sync_seconds(found: OutlinePlanner, chosen: dict[str, Option]) -> float:
    """Each device of the rollout takes its shard of bfloat16 weights through half of the network's rate."""
    run = chosen[ACTOR_GENERATION].run
    decoder = found.pricer.architecture(ACTOR_GENERATION).decoder
    return 2 * num_parameters(decoder) / (run.tp * run.pp) / (ACCELERATORS["H100"].network_bytes_s / 2)


def test_rules_that_cost_time_are_named_with_who_breaks_them() -> None:
    """Free, the two trained models lie side by side, each with fewer replicas to synchronize."""
    found = planner(EXPORTS["openrlhf"], outline())
    (plan,), _ = found.best(1)
    free, broken = found.without_rules(plan)
    assert free < plan.seconds
    assert any("every role takes all devices" in rule and "_training" in rule for rule in broken)


def test_rules_that_cost_nothing_are_not_named() -> None:
    asked = outline(**GRPO, nodes=[{"kind": "H100", "devices": 1}])
    found = planner(EXPORTS["verl"], asked)
    (plan,), _ = found.best(1)
    assert found.without_rules(plan) == (plan.seconds, ())


@pytest.mark.parametrize("name", ["verl", "nemo-rl"])
@pytest.mark.parametrize(
    ("model", "rule"),
    [
        ({"num_kv_heads": 1}, "TP divides query heads and key-value heads"),
        ({"vocab_size": 32_001}, "TP divides the vocabulary"),
    ],
)
def test_rules_that_leave_no_layout_are_named(name: str, model: dict[str, int], rule: str) -> None:
    """Where a model must be cut in two: five layers forbid PP, and its heads or its vocabulary TP."""
    found = planner(EXPORTS[name], outline(**GRPO, nodes=[{"kind": "H100", "devices": 2}]), shaped(num_layers=5, **model))
    table = found.priced[found.outline.workflow.holders.index(ACTOR_TRAINING)]
    cut = [option for option in table if option.run.dp == 1 and option.num_devices == 2]
    named = found.rules.in_the_way(cut, found.pricer)
    assert {(option.run.tp, option.run.pp) for option in cut} == {(2, 1), (1, 2)}
    assert sorted(named) == sorted(sentence for sentence in named if rule in sentence or "PP divides the layers" in sentence)
    assert len(named) == 2


@FRAMEWORKS
def test_no_layout_breaks_a_rule_of_the_framework(framework: Framework) -> None:
    """Written out for each framework once more: a model of 12 layers, 24 heads, 6 key-value heads and 32001 tokens."""
    model = shaped(num_layers=12, num_heads=24, num_kv_heads=6, vocab_size=32_001)
    found = planner(framework, outline(**GRPO), model)
    by_holder = dict(zip(found.outline.workflow.holders, found.options, strict=True))
    for holder in (ACTOR_TRAINING, REFERENCE_INFERENCE):
        degrees = {(option.run.tp, option.run.pp) for option in by_holder[holder]}
        # TP 2 divides 24 and 6, but not 32001; TP 4 not 6; PP 8 not 12. DeepSpeed has no pipeline, and keeps the vocabulary.
        assert degrees <= ({(1, 1), (2, 1)} if framework.name == "openrlhf" else {(1, 1), (1, 2), (1, 4)})
        assert degrees
    pipelines = {option.run.pp for option in by_holder[ACTOR_GENERATION]}
    assert (pipelines == {1}) == (framework.name != "nemo-rl")


def test_unknown_framework_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UserError, match=r"'trl' is not allowed.*verl 0\.9\.1, openrlhf 0\.11\.2, nemo-rl"):
        exported("trl")


def test_batches_have_a_micro_batch_in_every_framework() -> None:
    """The batch against DP times micro-batch: 64 sequences an update, of which every replica has a whole number."""
    assert WORKLOAD["prompts_per_step"] * WORKLOAD["samples_per_prompt"] // WORKLOAD["updates_per_step"] == 64
    for framework in EXPORTS.values():
        run = planned(framework, outline(**GRPO)).options[ACTOR_TRAINING].run
        assert 64 % (run.dp * run.micro_batch) == 0
