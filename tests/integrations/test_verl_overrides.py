"""Plans as verl's overrides: keys that verl has, the degrees of the plan, and what verl cannot run."""

from __future__ import annotations

from typing import Any

import pytest

from nereus.integrations.verl.overrides import KEYS, SERVED, forbids, overrides
from nereus.planner.outlined import OutlinePlanner, PlannedStep
from nereus.spec.outline import Outline, parse_outline
from tests.planner.test_outlined import SMALL

NODES = [{"kind": "H100", "count": 2, "devices": 4, "memory": "40GiB"}]
WORKLOAD = {
    "prompts_per_step": 32,
    "samples_per_prompt": 4,
    "prompt_tokens": 256,
    "response_tokens": 512,
    "updates_per_step": 2,
}


def outline(**changes: Any) -> Outline:
    declared = {"name": "o", "algorithm": "ppo", "models": {"actor": "a.json"}, "workload": WORKLOAD, "nodes": NODES}
    return parse_outline({**declared, **changes})


def planned(asked: Outline) -> PlannedStep:
    models = dict.fromkeys({stage.model for stage in asked.workflow.stages}, SMALL)
    planner = OutlinePlanner(outline=asked, models=models, learnt={}, one_pool=True, unpiped=SERVED)
    (plan,), _ = planner.best(1)
    return plan


def exported(asked: Outline) -> dict[str, str]:
    return dict(line.split("=", 1) for line in overrides(asked, planned(asked)))


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "remax"])
def test_only_keys_that_verl_has_are_set(algorithm: str) -> None:
    assert set(exported(outline(algorithm=algorithm))) <= KEYS


def test_every_role_has_the_whole_pool_so_that_verl_derives_the_plans_dp() -> None:
    asked = outline()
    plan, found = planned(asked), exported(asked)
    world = int(found["trainer.nnodes"]) * int(found["trainer.n_gpus_per_node"])
    assert world == 8
    for role, holder in (("actor_rollout_ref.actor", "actor_training"), ("critic", "critic_training")):
        tp, pp = (int(found[f"{role}.megatron.{axis}_model_parallel_size"]) for axis in ("tensor", "pipeline"))
        assert world // (tp * pp) == plan.options[holder].run.dp
        assert set(plan.devices[holder]) == set(range(8))
    assert {plan.options[holder].run.pp for holder in SERVED} == {1}


def test_batches_are_counted_as_verl_counts_them() -> None:
    """verl: a batch and a mini-batch in prompts, rollout.n responses to each."""
    found = exported(outline(algorithm="grpo", models={"actor": "a.json", "reward": "rule"}))
    assert (found["data.train_batch_size"], found["actor_rollout_ref.rollout.n"]) == ("32", "4")
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"] == "16"
    assert found["algorithm.adv_estimator"] == "grpo"
    assert not any(key.startswith(("critic", "reward")) for key in found)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"asynchronous": True}, "pools of its own"),
        ({"workload": {**WORKLOAD, "updates_per_step": 64}}, "must divide prompts_per_step"),
        ({"nodes": [*NODES, {"kind": "H100", "devices": 8}]}, "equal nodes"),
        ({"nodes": [{"kind": "H100"}, {"kind": "A100-80GB"}]}, "equal nodes"),
    ],
)
def test_what_verl_cannot_run_is_named(changes: dict[str, Any], reason: str) -> None:
    assert reason in forbids(outline(**changes))
    assert forbids(outline()) == ""
