"""Peak bytes of every device of a plan: all that stays on it, and the most that one model-stage puts on top.

Model-stages that share a device run one after the other, so their transients do not add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.sim.footprint import Shard
from nereus.sim.responses import Lengths
from nereus.sim.stages import StageTimes
from nereus.spec.workflow import GENERATION, TRAINING


def peak_bytes(times: StageTimes, plan: Plan, lengths: Lengths) -> Mapping[DeviceId, int]:
    """Of every device of the plan, in a step with these lengths."""
    resident: dict[DeviceId, float] = {}
    active: dict[DeviceId, float] = {}
    for holder in times.workflow.holders:
        own = plan.stages[holder]
        by_rank = [_rank_bytes(times, holder, own, rank, lengths) for rank in range(own.layout.pp)]
        for group in own.groups:
            for place, device in enumerate(group):
                stays, on_top = by_rank[place // own.layout.tp]
                resident[device] = resident.get(device, times.memory.fixed) + stays
                active[device] = max(active.get(device, 0.0), on_top)
    return {device: ceil(resident[device] + active[device]) for device in sorted(resident)}


def _rank_bytes(times: StageTimes, holder: str, plan: StagePlan, rank: int, lengths: Lengths) -> tuple[float, float]:
    """What stays on a device of a pipeline rank, and the most that a model-stage of the holder puts on top."""
    workflow, work = times.workflow, times.workload
    stages = [workflow.stage(name) for name in workflow.roles(holder)]
    shard = Shard(
        size=times.size(stages[0]),
        tp=plan.layout.tp,
        pp=plan.layout.pp,
        rank=rank,
        dp=plan.dp,
        trains=any(stage.role == TRAINING for stage in stages),
        zero1=plan.zero1,
        recompute=plan.recompute,
    )
    tokens, found = work.prompt_tokens + lengths.longest, []
    for stage in stages:
        sequences = times.sequences(stage, plan.dp)
        if stage.role == GENERATION:
            together = min(plan.micro_batch, sequences)
            found.append(shard.generation_bytes(times.memory, together, work.prompt_tokens, lengths.mean, lengths.longest))
        elif stage.role == TRAINING:
            rows = ceil(sequences / work.updates_per_step)
            micro = min(plan.micro_batch, rows)
            found.append(shard.training_bytes(times.memory, micro, tokens, max(rows / micro, 1)))
        else:
            found.append(shard.scoring_bytes(times.memory, min(plan.micro_batch, sequences), tokens))
    return shard.resident_bytes, max(found)
