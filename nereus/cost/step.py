"""The latency of one RL step under a plan: model-stages in the order of the workflow, and the weight sync between them.

A synchronous job runs generation, inference and training one after the other; their devices may be the same or not, and
nothing overlaps. The overlap graph of other workflows takes the place of this sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nereus.cost.batch import Batch
from nereus.cost.rates import BANDWIDTH_BYTES_S, Rates, reduce_latency_s
from nereus.cost.work import parameter_count, stage_work
from nereus.emu.plan import Plan, StagePlan
from nereus.layout.layout import Layout
from nereus.layout.tensors import ITEM_BYTES
from nereus.spec.model import ModelShape


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicts seconds for one model on one kind of device."""

    model: ModelShape
    dtype: str
    rates: Rates

    def stage_seconds(self, stage: StagePlan, batch: Batch) -> float:
        """Predicted seconds of one model-stage in one RL step."""
        work = stage_work(stage, self.model, self.dtype, batch)
        return self.rates.seconds(work, stage.layout.tp, stage.dp)

    def sync_seconds(self, replicas: int) -> float:
        """Predicted seconds of a weight sync to `replicas` generation EMUs: every replica's parameters over shared links."""
        size = parameter_count(self.model, Layout(), 0) * ITEM_BYTES[self.dtype]
        return reduce_latency_s(2) + replicas * size / BANDWIDTH_BYTES_S

    def step_seconds(self, plan: Plan, batch: Batch, generates: str) -> float:
        """L_step: predicted seconds of one RL step."""
        stages: Mapping[str, StagePlan] = plan.stages
        total = sum(self.stage_seconds(stage, batch) for stage in stages.values())
        return total + self.sync_seconds(stages[generates].dp)
