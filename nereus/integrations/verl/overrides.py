"""A plan of an outline as overrides of verl's Hydra configuration, to paste behind `python -m verl.trainer.main_ppo`.

    Outline, PlannedStep on one shared pool -> key=value lines of ppo_megatron_trainer

verl runs all roles on one pool of equal nodes and derives DP from what TP and PP leave of it. So only plans in which every
model-stage has all devices can be written down; the search is asked for those.
"""

from __future__ import annotations

from collections.abc import Iterator

from nereus.integrations.framework import Framework, assignment, num_nodes
from nereus.integrations.legality import ALL_DEVICES, GENERATES, TRAINERS, forbids_pool, megatron, unpiped
from nereus.planner.options import Option
from nereus.planner.posed import PlannedStep
from nereus.planner.rules import NOT_YET, Rules
from nereus.spec.outline import Outline
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.spec.workflow import CRITIC_TRAINING, REWARD_INFERENCE, Algorithm

ADVANTAGES = {Algorithm.PPO: "gae", Algorithm.GRPO: "grpo", Algorithm.REMAX: "remax"}
"""What verl calls the algorithms, by their estimator of advantages."""

RULES = Rules(
    each=(
        ALL_DEVICES,
        *NOT_YET,
        unpiped("verl's rollout engines have no pipeline", GENERATES | {REWARD_INFERENCE}),
        *megatron(TRAINERS | {REFERENCE_INFERENCE}),
    )
)
"""verl serves the reward model by a rollout engine."""

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REFERENCE = "actor_rollout_ref.ref"

KEYS = frozenset(
    {
        "algorithm.adv_estimator",
        "trainer.nnodes",
        "trainer.n_gpus_per_node",
        "data.train_batch_size",
        "data.max_response_length",
        f"{ROLLOUT}.n",
        f"{ROLLOUT}.tensor_model_parallel_size",
        f"{ROLLOUT}.max_num_seqs",
        f"{REFERENCE}.log_prob_micro_batch_size_per_gpu",
        *(
            f"{role}.{key}"
            for role in (ACTOR, "critic")
            for key in (
                "ppo_mini_batch_size",
                "ppo_micro_batch_size_per_gpu",
                "megatron.sequence_parallel",
                "megatron.use_distributed_optimizer",
                "megatron.override_transformer_config.recompute_granularity",
                "megatron.override_transformer_config.recompute_method",
                "megatron.override_transformer_config.recompute_num_layers",
            )
        ),
        *(
            f"{role}.megatron.{axis}_model_parallel_size"
            for role in (ACTOR, REFERENCE, "critic")
            for axis in ("tensor", "pipeline")
        ),
        "reward.reward_model.enable",
        "reward.reward_model.rollout.tensor_model_parallel_size",
    }
)
"""All keys that an export may set."""


def forbids(outline: Outline) -> str:
    """Which of verl's rules an outline breaks whatever its plan; empty where none is."""
    if outline.workload.prompts_per_step % outline.workload.updates_per_step:
        return "verl counts mini-batches in prompts; updates_per_step must divide prompts_per_step"
    return forbids_pool(outline, "verl")


def _pairs(outline: Outline, plan: PlannedStep) -> Iterator[tuple[str, object]]:
    work, options = outline.workload, plan.options
    yield "algorithm.adv_estimator", ADVANTAGES[outline.algorithm]
    yield "trainer.nnodes", num_nodes(outline)
    yield "trainer.n_gpus_per_node", outline.nodes[0].devices
    yield "data.train_batch_size", work.prompts_per_step
    yield "data.max_response_length", work.longest_tokens
    yield f"{ROLLOUT}.n", work.samples_per_prompt
    rollout = options[ACTOR_GENERATION].run
    yield f"{ROLLOUT}.tensor_model_parallel_size", rollout.tp
    yield f"{ROLLOUT}.max_num_seqs", rollout.micro_batch
    yield from _trains(ACTOR, outline, options[ACTOR_TRAINING])
    reference = options[REFERENCE_INFERENCE].run
    yield from _degrees(REFERENCE, options[REFERENCE_INFERENCE])
    yield f"{REFERENCE}.log_prob_micro_batch_size_per_gpu", reference.micro_batch
    if CRITIC_TRAINING in options:
        yield from _trains("critic", outline, options[CRITIC_TRAINING])
    if REWARD_INFERENCE in options:
        yield "reward.reward_model.enable", True
        yield "reward.reward_model.rollout.tensor_model_parallel_size", options[REWARD_INFERENCE].run.tp


def _trains(role: str, outline: Outline, option: Option) -> Iterator[tuple[str, object]]:
    """A role that trains. verl counts a mini-batch in prompts, and a micro-batch in the sequences of one replica."""
    yield from _degrees(role, option)
    yield f"{role}.megatron.sequence_parallel", option.run.sequence_parallel
    yield f"{role}.megatron.use_distributed_optimizer", option.run.zero1
    yield f"{role}.ppo_mini_batch_size", outline.workload.prompts_per_step // outline.workload.updates_per_step
    yield f"{role}.ppo_micro_batch_size_per_gpu", option.run.micro_batch
    if option.recomputes:
        transformer = f"{role}.megatron.override_transformer_config"
        yield f"{transformer}.recompute_granularity", "full"
        yield f"{transformer}.recompute_method", "uniform"
        yield f"{transformer}.recompute_num_layers", 1


def _degrees(role: str, option: Option) -> Iterator[tuple[str, object]]:
    yield f"{role}.megatron.tensor_model_parallel_size", option.run.tp
    yield f"{role}.megatron.pipeline_model_parallel_size", option.run.pp


VERL = Framework(
    name="verl",
    version="0.9.1",
    source="verl/trainer/config/_generated_ppo_megatron_trainer.yaml of the wheel on PyPI",
    keys=KEYS,
    rules=RULES,
    forbids=forbids,
    pairs=_pairs,
    line=assignment,
)
