"""The model-stages of each algorithm, what they wait for, and whose EMUs they run on."""

from __future__ import annotations

import pytest

from nereus.spec.stages import STAGES
from nereus.spec.workflow import Algorithm, Workflow, workflow

PPO, GRPO, REMAX = (workflow(algorithm) for algorithm in Algorithm)
EVERY = [
    workflow(algorithm, asynchronous=asynchronous, reward_model=reward_model, critic_apart=critic_apart)
    for algorithm in Algorithm
    for asynchronous in (False, True)
    for reward_model in (False, True)
    for critic_apart in (False, True)
]


def by_role(found: Workflow) -> dict[str, list[str]]:
    roles = dict.fromkeys(stage.role for stage in found.stages)
    return {role: [stage.name for stage in found.stages if stage.role == role] for role in roles}


def test_ppo_has_the_six_model_stages_of_the_paper() -> None:
    assert by_role(PPO) == {
        "generation": ["actor_generation"],
        "inference": ["reference_inference", "reward_inference", "critic_inference"],
        "training": ["actor_training", "critic_training"],
    }


def test_grpo_has_no_critic() -> None:
    assert by_role(GRPO) == {
        "generation": ["actor_generation"],
        "inference": ["reference_inference", "reward_inference"],
        "training": ["actor_training"],
    }


def test_grpo_with_a_rule_for_its_reward_is_the_native_job() -> None:
    assert tuple(stage.name for stage in workflow(Algorithm.GRPO, reward_model=False).stages) == STAGES


def test_remax_has_a_greedy_rollout_on_the_same_units_whose_reward_it_needs() -> None:
    assert by_role(REMAX)["generation"] == ["actor_generation", "baseline_generation"]
    assert REMAX.stage("baseline_generation").holder == "actor_generation"
    assert REMAX.stage("reward_inference").after == ("actor_generation", "baseline_generation")
    without = workflow(Algorithm.REMAX, reward_model=False)
    assert "baseline_generation" in without.stage("actor_training").after


def test_updates_wait_for_every_score() -> None:
    scores = ("reference_inference", "reward_inference", "critic_inference")
    assert PPO.stage("actor_training").after == PPO.stage("critic_training").after == scores


def test_critic_scores_on_the_units_that_train_it_unless_it_is_apart() -> None:
    assert PPO.roles("critic_training") == ("critic_inference", "critic_training")
    assert [(sync.source, sync.target) for sync in PPO.syncs] == [("actor_training", "actor_generation")]
    apart = workflow(Algorithm.PPO, critic_apart=True)
    assert apart.roles("critic_training") == ("critic_training",)
    assert ("critic_training", "critic_inference") in [(sync.source, sync.target) for sync in apart.syncs]


def test_five_holders_carry_the_six_model_stages_of_ppo() -> None:
    assert set(PPO.holders) == {stage.name for stage in PPO.stages} - {"critic_inference"}


def test_model_is_the_one_whose_weights_are_used() -> None:
    assert {stage.name: stage.model for stage in (*PPO.stages, *REMAX.stages)} == {
        "actor_generation": "actor",
        "baseline_generation": "actor",
        "reference_inference": "reference",
        "reward_inference": "reward",
        "critic_inference": "critic",
        "actor_training": "actor",
        "critic_training": "critic",
    }


def test_asynchronously_nothing_waits_for_generation_which_is_apart_from_the_rest() -> None:
    found = workflow(Algorithm.PPO, asynchronous=True)
    assert "actor_generation" not in {earlier for earlier, _ in found.dependencies()}
    assert {later for _, later in found.dependencies()} == {"actor_training", "critic_training"}
    others = ("reference_inference", "reward_inference", "actor_training", "critic_training")
    assert set(found.apart()) == {("actor_generation", other) for other in others}
    assert list(PPO.apart()) == []


@pytest.mark.parametrize("found", EVERY, ids=str)
def test_every_model_stage_comes_after_what_it_waits_for_and_runs_on_a_holder(found: Workflow) -> None:
    names = [stage.name for stage in found.stages]
    assert len(set(names)) == len(names)
    for at, stage in enumerate(found.stages):
        assert set(stage.after) <= set(names[:at])
        assert stage.holder in found.holders
    assert {name for sync in found.syncs for name in (sync.source, sync.target)} <= set(found.holders)
