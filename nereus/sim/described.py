"""An outline as the control core knows a job: its model-stages, their logical state, a first plan, and what plans cost."""

from __future__ import annotations

from collections.abc import Mapping

from nereus.control.state import JobConfig
from nereus.emu.plan import StagePlan
from nereus.emu.unit import counter_tensors
from nereus.layout.catalog import StateSpec
from nereus.layout.dense import state_spec
from nereus.planner.outline_pricing import OutlinePricing, node_of
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline
from nereus.spec.policy import CheckpointRule, Policy
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING
from nereus.spec.workflow import TRAINING
from nereus.transition.estimate import LinkRates

EXPECTED = 0.5
"""Of the datasheet's rate, what moving state is expected to reach: links are shared, and messages start and end."""

OP_S = 0.05
"""Seconds of an operation beside its bytes: a call to every member's process and its answer."""

GROUP_S = 0.1
"""Seconds per member to make an NCCL communicator, in the lower range of what is reported for small groups."""


def states_of(outline: Outline, models: Mapping[str, HfModel]) -> dict[str, StateSpec]:
    """The logical state of each holder; equal models in equal roles share one."""
    made: dict[tuple[int, bool], StateSpec] = {}
    states = {}
    for holder in outline.workflow.holders:
        model = models[outline.workflow.stage(holder).model]
        trains = any(outline.workflow.stage(stage).role == TRAINING for stage in outline.workflow.roles(holder))
        key = hash(model.decoder), trains
        if key not in made:
            made[key] = state_spec(model.decoder, model.dtype, counter_tensors(), optimizer=trains)
        states[holder] = made[key]
    return states


def links_of(outline: Outline) -> LinkRates:
    """What moving state is expected to take before any was moved: half of the datasheet's rates, and slow set-up."""
    rates = [group.accelerator for group in outline.nodes]
    return LinkRates(
        wire_bytes_s=EXPECTED * min(kind.network_bytes_s for kind in rates),
        near_bytes_s=EXPECTED * min(kind.node_bytes_s for kind in rates),
        copy_bytes_s=EXPECTED * min(kind.memory_bytes_s for kind in rates) / 2,
        op_s=OP_S,
        base_s=OP_S,
        bucket_s=OP_S,
        group_s=GROUP_S,
    )


def config_of(
    outline: Outline,
    models: Mapping[str, HfModel],
    states: Mapping[str, StateSpec],
    first: Mapping[str, StagePlan],
    policy: Policy,
    checkpoint: CheckpointRule | None,
    prior: OutlinePricing,
) -> JobConfig:
    """What the controller needs to know of the job; `prior` found its first plan."""
    return JobConfig(
        algorithm=outline.algorithm,
        mode="async" if outline.asynchronous else "sync",
        policy=policy,
        first=first,
        states=states,
        trains=ACTOR_TRAINING,
        generates=ACTOR_GENERATION,
        num_kv_heads=models["actor"].decoder.num_kv_heads,
        node_of=node_of(outline),
        prior=prior,
        pool_is_live=True,
        checkpoint=checkpoint,
    )
