"""A plan of an outline as flags of OpenRLHF, to paste behind `python -m openrlhf.cli.train_ppo_ray`.

    Outline, PlannedStep on one shared pool (--train.colocate_all) -> --key value lines

Actor, critic, reference and reward model run under DeepSpeed, the rollout under vLLM. DeepSpeed has no pipeline here, and
one TP degree, one micro-batch for training and one for scoring hold for all of its models.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from nereus.integrations.framework import Framework, engine_share, num_nodes
from nereus.integrations.legality import ALL_DEVICES, SCORERS, TRAINERS, forbids_pool, sharded_heads, unpiped
from nereus.planner.options import Option
from nereus.planner.posed import PlannedStep
from nereus.planner.rules import NOT_YET, Rules, Shared
from nereus.spec.outline import Outline
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.spec.workflow import CRITIC_TRAINING, REWARD_INFERENCE, Algorithm

ADVANTAGES = {Algorithm.PPO: "gae", Algorithm.GRPO: "group_norm"}
"""What OpenRLHF calls the algorithms that it has, by their estimator of advantages."""

ROLES = {
    ACTOR_TRAINING: "actor",
    REFERENCE_INFERENCE: "ref",
    CRITIC_TRAINING: "critic",
    REWARD_INFERENCE: "reward",
}
"""What OpenRLHF calls the holders that run under DeepSpeed."""

KEYS = frozenset(
    {
        "algo.advantage.estimator",
        "train.colocate_all",
        "vllm.num_engines",
        "vllm.tensor_parallel_size",
        "vllm.gpu_memory_utilization",
        "vllm.enable_sleep",
        "ds.zero_stage",
        "ds.tensor_parallel_size",
        "actor.gradient_checkpointing_enable",
        "train.batch_size",
        "train.micro_batch_size",
        "rollout.batch_size",
        "rollout.n_samples_per_prompt",
        "rollout.micro_batch_size",
        "rollout.max_new_tokens",
        "data.max_len",
        *(f"{role}.{key}" for role in ROLES.values() for key in ("num_nodes", "num_gpus_per_node")),
    }
)
"""All flags that an export may set."""

DEEPSPEED = TRAINERS | SCORERS
"""Holders that run under DeepSpeed."""


def _tp(option: Option) -> Hashable:
    return option.run.tp


def _trained(option: Option) -> Hashable:
    return option.run.micro_batch, option.recomputes


def _scored(option: Option) -> Hashable:
    return option.run.micro_batch


RULES = Rules(
    each=(
        ALL_DEVICES,
        *NOT_YET,
        unpiped("neither OpenRLHF's DeepSpeed nor its vLLM engines have a pipeline"),
        sharded_heads("DeepSpeed's TP divides query heads and key-value heads, of which it repeats none", DEEPSPEED),
    ),
    shared=(
        Shared("one ds.tensor_parallel_size holds for all models under DeepSpeed", _tp, DEEPSPEED),
        Shared("train.micro_batch_size and gradient checkpointing hold for actor and critic", _trained, TRAINERS),
        Shared("one rollout.micro_batch_size holds for reference and reward model", _scored, SCORERS),
    ),
)


def forbids(outline: Outline) -> str:
    """Which of OpenRLHF's rules an outline breaks whatever its plan; empty where none is."""
    if outline.algorithm not in ADVANTAGES:
        return f"OpenRLHF has no {outline.algorithm}; its estimators here are those of {' and '.join(ADVANTAGES)}"
    if outline.algorithm is Algorithm.GRPO and outline.workload.samples_per_prompt == 1:
        return "OpenRLHF's group_norm needs samples_per_prompt of 2 or more: the advantage of a lone sample is 0"
    return forbids_pool(outline, "OpenRLHF")


def _pairs(outline: Outline, plan: PlannedStep) -> Iterator[tuple[str, object]]:
    work, options = outline.workload, plan.options
    yield "algo.advantage.estimator", ADVANTAGES[outline.algorithm]
    yield "train.colocate_all", True
    for holder, role in ROLES.items():
        if holder in options:
            yield f"{role}.num_nodes", num_nodes(outline)
            yield f"{role}.num_gpus_per_node", outline.nodes[0].devices
    rollout = options[ACTOR_GENERATION]
    yield "vllm.num_engines", rollout.run.dp
    yield "vllm.tensor_parallel_size", rollout.run.tp
    yield "vllm.gpu_memory_utilization", engine_share(outline, plan)
    yield "vllm.enable_sleep", True
    trained = options[ACTOR_TRAINING]
    # With one replica there is nothing to shard, and stage 1 is what stage 0 would be.
    yield "ds.zero_stage", 1
    yield "ds.tensor_parallel_size", trained.run.tp
    if trained.recomputes:
        yield "actor.gradient_checkpointing_enable", True
    yield "rollout.batch_size", work.prompts_per_step
    yield "rollout.n_samples_per_prompt", work.samples_per_prompt
    yield "rollout.micro_batch_size", options[REFERENCE_INFERENCE].run.micro_batch
    yield "train.batch_size", work.global_batch // work.updates_per_step
    yield "train.micro_batch_size", trained.run.micro_batch
    yield "rollout.max_new_tokens", work.longest_tokens
    yield "data.max_len", work.prompt_tokens + work.longest_tokens


def flag(key: str, value: object) -> str:
    """An argument of its parser; True is a flag without a value."""
    return f"--{key}" if value is True else f"--{key} {value}"


OPENRLHF = Framework(
    name="openrlhf",
    version="0.11.2",
    source="openrlhf/cli/train_ppo_ray.py of the wheel on PyPI",
    keys=KEYS,
    rules=RULES,
    forbids=forbids,
    pairs=_pairs,
    line=flag,
    # DeepSpeed's TP leaves norms and residuals whole on every rank.
    habits={"sequence_parallel": False},
)
