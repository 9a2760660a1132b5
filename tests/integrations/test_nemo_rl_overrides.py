"""Plans as NeMo-RL's overrides: one layout of policy and reference, samples rather than prompts, padded sequences."""

from __future__ import annotations

import pytest

from nereus.integrations.nemo_rl.overrides import EQUAL_MICRO_BATCHES_FROM_TP, NEMO_RL, RULES
from nereus.planner.outlined import OutlinePlanner
from nereus.spec.stages import ACTOR_TRAINING, REFERENCE_INFERENCE
from tests.integrations.outlines import GRPO, WORKLOAD, lines, outline, planned, planner


def test_world_is_divisible_as_the_policy_checks_it() -> None:
    """lm_policy.py: PP * CP * TP divides the world size; DP is what is left."""
    asked = outline(**GRPO)
    found = lines(NEMO_RL, asked)
    axes = ("tensor_model", "pipeline_model", "context")
    tp, pp, cp = (int(found[f"policy.megatron_cfg.{axis}_parallel_size"]) for axis in axes)
    world = int(found["cluster.num_nodes"]) * int(found["cluster.gpus_per_node"])
    assert (world, cp) == (8, 1)
    assert world // (tp * pp) == planned(NEMO_RL, asked).options[ACTOR_TRAINING].run.dp
    engine = [int(found[f"policy.generation.vllm_cfg.{axis}_parallel_size"]) for axis in ("tensor", "pipeline")]
    assert world % (engine[0] * engine[1]) == 0
    assert found["policy.generation.vllm_cfg.async_engine"] == str(engine[1] > 1)


def test_batches_are_counted_in_samples() -> None:
    found = lines(NEMO_RL, outline(**GRPO))
    assert (found["grpo.num_prompts_per_step"], found["grpo.num_generations_per_prompt"]) == ("32", "4")
    assert found["policy.train_global_batch_size"] == "64"


def test_policy_and_reference_have_one_layout() -> None:
    plan = planned(NEMO_RL, outline(**GRPO))
    trained, scored = plan.options[ACTOR_TRAINING].run, plan.options[REFERENCE_INFERENCE].run
    assert (trained.tp, trained.pp) == (scored.tp, scored.pp)


def test_micro_batches_are_equal_from_tp_4_on() -> None:
    """What `Policy` asserts before it starts: train_micro_batch_size == logprob_batch_size where TP >= 4."""
    found: OutlinePlanner = planner(NEMO_RL, outline(**GRPO))
    trained, scored = (found.outline.workflow.holders.index(h) for h in (ACTOR_TRAINING, REFERENCE_INFERENCE))
    seen = set()
    for rows in RULES.agreements(found.options):
        for one in rows[trained]:
            for other in rows[scored]:
                first, second = found.options[trained][one].run, found.options[scored][other].run
                seen.add((first.tp >= EQUAL_MICRO_BATCHES_FROM_TP, first.micro_batch == second.micro_batch))
    assert seen == {(False, True), (False, False), (True, True)}


@pytest.mark.parametrize(("longest", "tokens"), [(1024, 1280), (1023, 1280)])
def test_longest_sequence_is_a_multiple_of_what_cuts_it(longest: int, tokens: int) -> None:
    asked = outline(**GRPO, workload={**WORKLOAD, "longest_response_tokens": longest})
    found = lines(NEMO_RL, asked)
    tp = int(found["policy.make_sequence_length_divisible_by"])
    assert tp == int(found["policy.megatron_cfg.tensor_model_parallel_size"])
    assert int(found["policy.max_total_sequence_length"]) == tokens - (256 + longest < tokens and tp == 1)
    assert int(found["policy.max_total_sequence_length"]) % tp == 0


def test_jobs_that_nemo_rl_does_not_have_are_named() -> None:
    assert "no ppo" in NEMO_RL.forbids(outline())
    assert "must be rule" in NEMO_RL.forbids(outline(algorithm="grpo"))
