"""Plans as verl's overrides: the degrees of the plan, counted as verl counts, and what verl cannot run."""

from __future__ import annotations

from nereus.integrations.verl.overrides import VERL
from nereus.spec.stages import ACTOR_GENERATION
from nereus.spec.workflow import REWARD_INFERENCE
from tests.integrations.outlines import GRPO, WORKLOAD, lines, outline, planned


def test_pool_and_degrees_give_the_plans_dp() -> None:
    asked = outline()
    plan, found = planned(VERL, asked), lines(VERL, asked)
    world = int(found["trainer.nnodes"]) * int(found["trainer.n_gpus_per_node"])
    assert world == 8
    for role, holder in (("actor_rollout_ref.actor", "actor_training"), ("critic", "critic_training")):
        tp, pp = (int(found[f"{role}.megatron.{axis}_model_parallel_size"]) for axis in ("tensor", "pipeline"))
        assert world // (tp * pp) == plan.options[holder].run.dp
    assert {plan.options[holder].run.pp for holder in (ACTOR_GENERATION, REWARD_INFERENCE)} == {1}


def test_batches_are_counted_as_verl_counts_them() -> None:
    """verl: a batch and a mini-batch in prompts, rollout.n responses to each."""
    found = lines(VERL, outline(**GRPO))
    assert (found["data.train_batch_size"], found["actor_rollout_ref.rollout.n"]) == ("32", "4")
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"] == "16"
    assert found["algorithm.adv_estimator"] == "grpo"
    assert not any(key.startswith(("critic", "reward")) for key in found)


def test_mini_batches_that_are_no_prompts_are_refused() -> None:
    asked = outline(workload={**WORKLOAD, "updates_per_step": 64})
    assert "must divide prompts_per_step" in VERL.forbids(asked)
