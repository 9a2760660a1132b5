"""What planner, policy and control ask: seconds and memory of a planned model-stage, and of a step of them.

    StagePlan, Batch -> Execution -> Workload -> seconds          one model, one kind of device, one regime
    stage times of a step -> CostModel.learn -> a better CostModel

A synchronous job runs generation, inference and training one after the other; their devices may be the same or not, and
nothing overlaps. Each role (generation, inference, training) has efficiencies of its own, fitted on its own last runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nereus.cost.batch import Batch
from nereus.cost.components import Footprint, MemoryScales, generation_components, training_components
from nereus.cost.efficiency import Efficiencies
from nereus.cost.execution import PLAIN, Execution, Regime, execution_of
from nereus.cost.generation import Rollout, generation_workload
from nereus.cost.layer import Architecture
from nereus.cost.ledger import ledger_footprint
from nereus.cost.training import hop_latency_s, inference_workload, rank_weight_bytes, training_workload
from nereus.cost.volume import Workload
from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import Layout
from nereus.spec.hardware import Hardware
from nereus.spec.stages import ACTOR_GENERATION, role_of

WINDOW = 24
"""Measurements of a role that are remembered."""

RECENCY = 0.88
"""Weight of a measurement relative to the next one: six new ones outweigh all before, so that a drift is followed within a
few steps, and one that was disturbed is outweighed by the rest. What ran before still tells plans apart."""


LEAST_TOKENS = 1e-6
"""Token steps of a response that is one token long: the prefill gives the first token of each."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A model-stage that was run."""

    stage: StagePlan
    batch: Batch
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Predicts seconds and bytes for one model on one kind of device."""

    model: Architecture
    hardware: Hardware
    dtype: str
    regime: Regime = PLAIN
    prior: Efficiencies
    """What is known of the device before the job ran on it."""
    scales: MemoryScales = field(default_factory=MemoryScales)
    """Of what an allocator takes; a ledger needs none."""
    learnt: Mapping[str, Efficiencies] = field(default_factory=dict)
    """What is known now, by role; the prior where nothing was measured."""
    measured: tuple[Measurement, ...] = ()

    def stage_seconds(self, stage: StagePlan, batch: Batch) -> float:
        """Predicted seconds of one model-stage in one RL step."""
        return self.learnt.get(_role(stage), self.prior).seconds(self.workload(stage, batch))

    def sync_seconds(self, replicas: int) -> float:
        """Predicted seconds of a weight sync to `replicas` generation EMUs: all parameters to each, over its link.

        Where all share one link, one after the other.
        """
        run = self.execution(StagePlan(ACTOR_GENERATION, Layout(), 1, (0,)), Batch(1, 1, 1))
        link = self.hardware.link(1 + replicas)
        size = rank_weight_bytes(run, self.model, 0)
        in_turn = replicas if self.regime.shares_links else 1
        return 2 * hop_latency_s(run, link) + in_turn * size / self.hardware.bytes_s(link)

    def step_seconds(self, plan: Plan, batch: Batch, generates: str) -> float:
        """L_step: predicted seconds of one RL step."""
        stages: Mapping[str, StagePlan] = plan.stages
        total = sum(self.stage_seconds(stage, batch) for stage in stages.values())
        return total + self.sync_seconds(stages[generates].dp)

    def footprints(self, stage: StagePlan, state: StateSpec, batch: Batch) -> tuple[Footprint, ...]:
        """The bytes of each rank of one EMU of a model-stage."""
        layout = stage.layout
        if self.regime.ledger:
            model, dtype = self.model.decoder, self.dtype
            return tuple(ledger_footprint(stage, rank, state, model, dtype, batch) for rank in range(layout.size))
        role, run = _role(stage), self.execution(stage, batch)
        if role == "training":
            rows = training_components(run, self.model)
        else:
            cached = run.micro_batch * run.tokens if role == "generation" else 0.0
            rows = generation_components(run, self.model, cached, kv_item_bytes=run.item_bytes)
        by_pp = [self.scales.footprint(row) for row in rows]
        return tuple(by_pp[layout.coordinate(rank).pp] for rank in range(layout.size))

    def peaks(self, plan: Plan, states: Mapping[str, StateSpec], batch: Batch) -> dict[DeviceId, int]:
        """Peak bytes of every device over one RL step of the plan (Mem_peak of Eq. (1), before headroom).

        The state of every unit on it, and the most that is live while one of its model-stages computes.
        """
        state: dict[DeviceId, int] = {}
        live: dict[DeviceId, int] = {}
        for name, stage in plan.stages.items():
            footprints = self.footprints(stage, states[name], batch)
            for group in stage.groups:
                for footprint, device in zip(footprints, group, strict=True):
                    state[device] = state.get(device, 0) + footprint.state
                    live[device] = max(live.get(device, 0), footprint.live)
        return {device: state[device] + live[device] for device in sorted(state)}

    def execution(self, stage: StagePlan, batch: Batch) -> Execution:
        """How a model-stage runs."""
        trains = _role(stage) == "training"
        return execution_of(stage, self.hardware, batch, trains=trains, regime=self.regime, dtype=self.dtype)

    def workload(self, stage: StagePlan, batch: Batch) -> Workload:
        """The work of a model-stage in one RL step."""
        role, run = _role(stage), self.execution(stage, batch)
        if role == "training":
            return replace(training_workload(run, self.model), repeats=batch.updates)
        if role == "inference":
            return inference_workload(run, self.model)
        after_first = max(batch.response_tokens - 1, LEAST_TOKENS)
        rollout = Rollout(
            sequences=batch.rows(stage.dp, trains=False) * stage.dp,
            prompt_tokens=batch.prompt_tokens,
            response_tokens=after_first,
            longest_tokens=after_first,
            most_sequences=run.micro_batch,
            kv_item_bytes=run.item_bytes,
        )
        return generation_workload(run, self.model, rollout)

    def learn(self, measured: Iterable[Measurement]) -> CostModel:
        """This model after more runs: the efficiencies of each role are fitted anew, on its window."""
        seen = (*self.measured, *measured)
        kept: list[Measurement] = []
        learnt: dict[str, Efficiencies] = {}
        for role in sorted({_role(one.stage) for one in seen}):
            window = [one for one in seen if _role(one.stage) == role][-WINDOW:]
            kept.extend(window)
            works = [self.workload(one.stage, one.batch) for one in window]
            weights = [RECENCY**age for age in reversed(range(len(window)))]
            learnt[role] = self.prior.learn(works, [one.seconds for one in window], weights)
        return replace(self, learnt=learnt, measured=tuple(kept))

    def spent(self) -> Mapping[str, float]:
        """Seconds by operation class of the last run of every model-stage."""
        found: Counter[str] = Counter()
        for one in {one.stage.stage: one for one in self.measured}.values():
            role = _role(one.stage)
            found.update(self.learnt[role].spent(role, self.workload(one.stage, one.batch)))
        return found


def _role(stage: StagePlan) -> str:
    return role_of(stage.stage) or "inference"
