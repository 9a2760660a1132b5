"""A plan of an outline as overrides of NeMo-RL's GRPO configuration, to paste behind its GRPO script.

    Outline, PlannedStep on one shared pool -> key=value lines over examples/configs/grpo_math_1B_megatron.yaml

The policy trains under Megatron, with the reference's weights in the same workers: both have one layout. Rewards come from
an environment: a reward model would have nodes of its own, which are not written yet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import ceil

from nereus.integrations.framework import Framework, assignment, engine_share, num_nodes
from nereus.integrations.legality import ALL_DEVICES, forbids_pool, megatron
from nereus.planner.options import Option
from nereus.planner.posed import PlannedStep
from nereus.planner.rules import NOT_YET, Rules, Shared
from nereus.spec.outline import Outline
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.spec.workflow import Algorithm

MEGATRON = "policy.megatron_cfg"
ENGINE = "policy.generation.vllm_cfg"

POLICY = frozenset({ACTOR_TRAINING, REFERENCE_INFERENCE})
"""Holders that are one group of Megatron workers."""

EQUAL_MICRO_BATCHES_FROM_TP = 4
"""From this TP degree on training and log-probabilities must have one micro-batch: products of other shapes round otherwise,
and NeMo-RL refuses to start (lm_policy.py, NRL_IGNORE_TP_ACCURACY_CHECK)."""

KEYS = frozenset(
    {
        "cluster.num_nodes",
        "cluster.gpus_per_node",
        "grpo.num_prompts_per_step",
        "grpo.num_generations_per_prompt",
        "policy.train_global_batch_size",
        "policy.train_micro_batch_size",
        "policy.logprob_batch_size",
        "policy.max_total_sequence_length",
        "policy.make_sequence_length_divisible_by",
        "policy.dtensor_cfg.enabled",
        "policy.generation.backend",
        "policy.generation.colocated.enabled",
        f"{MEGATRON}.enabled",
        f"{MEGATRON}.tensor_model_parallel_size",
        f"{MEGATRON}.pipeline_model_parallel_size",
        f"{MEGATRON}.context_parallel_size",
        f"{MEGATRON}.sequence_parallel",
        f"{MEGATRON}.activation_checkpointing",
        f"{MEGATRON}.optimizer.use_distributed_optimizer",
        f"{ENGINE}.tensor_parallel_size",
        f"{ENGINE}.pipeline_parallel_size",
        f"{ENGINE}.gpu_memory_utilization",
        f"{ENGINE}.async_engine",
    }
)
"""All keys that an export may set."""


def _layout(option: Option) -> Hashable:
    return option.run.tp, option.run.pp, option.run.micro_batch if option.run.tp >= EQUAL_MICRO_BATCHES_FROM_TP else 0


RULES = Rules(
    each=(ALL_DEVICES, *NOT_YET, *megatron(POLICY)),
    shared=(Shared("policy and reference are one group of workers, of one micro-batch from TP 4 on", _layout, POLICY),),
)


def forbids(outline: Outline) -> str:
    """Which of NeMo-RL's rules an outline breaks whatever its plan; empty where none is."""
    if outline.algorithm is not Algorithm.GRPO:
        return f"NeMo-RL has no {outline.algorithm} at this version; the algorithm must be grpo"
    if outline.models.reward != "rule":
        return "NeMo-RL runs a reward model on nodes of its own, which is not written yet; the reward must be rule"
    return forbids_pool(outline, "NeMo-RL")


def _pairs(outline: Outline, plan: PlannedStep) -> Iterator[tuple[str, object]]:
    work, options = outline.workload, plan.options
    trained, rollout = options[ACTOR_TRAINING], options[ACTOR_GENERATION]
    yield "cluster.num_nodes", num_nodes(outline)
    yield "cluster.gpus_per_node", outline.nodes[0].devices
    yield "grpo.num_prompts_per_step", work.prompts_per_step
    yield "grpo.num_generations_per_prompt", work.samples_per_prompt
    yield "policy.train_global_batch_size", work.global_batch // work.updates_per_step
    yield "policy.train_micro_batch_size", trained.run.micro_batch
    yield "policy.logprob_batch_size", options[REFERENCE_INFERENCE].run.micro_batch
    # Sequences are padded to a multiple of what cuts them: TP times CP, which is 1.
    yield "policy.make_sequence_length_divisible_by", trained.run.tp
    yield "policy.max_total_sequence_length", _multiple(work.prompt_tokens + work.longest_tokens, trained.run.tp)
    yield "policy.dtensor_cfg.enabled", False
    yield from _trains(trained)
    yield "policy.generation.backend", "vllm"
    yield "policy.generation.colocated.enabled", True
    yield f"{ENGINE}.tensor_parallel_size", rollout.run.tp
    yield f"{ENGINE}.pipeline_parallel_size", rollout.run.pp
    yield f"{ENGINE}.gpu_memory_utilization", engine_share(outline, plan)
    # vLLM's blocking engine has no pipeline.
    yield f"{ENGINE}.async_engine", rollout.run.pp > 1


def _trains(option: Option) -> Iterator[tuple[str, object]]:
    yield f"{MEGATRON}.enabled", True
    yield f"{MEGATRON}.tensor_model_parallel_size", option.run.tp
    yield f"{MEGATRON}.pipeline_model_parallel_size", option.run.pp
    yield f"{MEGATRON}.context_parallel_size", 1
    yield f"{MEGATRON}.sequence_parallel", option.run.sequence_parallel
    yield f"{MEGATRON}.activation_checkpointing", option.recomputes
    # With one replica there is nothing to shard; Megatron overlaps its gathers only with this optimizer.
    yield f"{MEGATRON}.optimizer.use_distributed_optimizer", True


def _multiple(tokens: int, of: int) -> int:
    return ceil(tokens / of) * of


NEMO_RL = Framework(
    name="nemo-rl",
    version="main@b26cfeb3a263",
    source="examples/configs/grpo_math_1B.yaml of NVIDIA-NeMo/RL at this commit",
    keys=KEYS,
    rules=RULES,
    forbids=forbids,
    pairs=_pairs,
    line=assignment,
)
