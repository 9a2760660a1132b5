"""The pricing of the native job: its batch, its cost model, and the search over its candidates.

Job, states -> NativePricing --at lengths--> SearchRequest -> search -> Target
stage times of a step -> CostModel.learn -> a better NativePricing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nereus.cost.batch import Batch
from nereus.cost.native import native_cost
from nereus.cost.step import CostModel, Measurement
from nereus.emu.plan import DeviceId, Plan
from nereus.layout.catalog import StateSpec
from nereus.planner.pricing import Devices, Lengths, Target
from nereus.planner.request import SearchRequest
from nereus.planner.search import search
from nereus.spec.job import Job

UNKNOWN_FLOPS = 1e10
"""FLOP/s of a device that was not timed: what a slow core does in float32, so that nothing is free before it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePricing:
    """Prices the plans of a job file."""

    job: Job
    states: Mapping[str, StateSpec]
    """The logical state of each model-stage."""
    generates: str
    """The model-stage that receives the weight sync."""
    cost: CostModel

    @classmethod
    def of(cls, job: Job, states: Mapping[str, StateSpec], generates: str) -> NativePricing:
        """Before any device was timed."""
        return cls(job=job, states=states, generates=generates, cost=_cost(job, UNKNOWN_FLOPS))

    @property
    def usable_bytes(self) -> float:
        """Of the declared memory, less headroom."""
        return (self.job.cluster.device.memory or 0) * (1 - self.job.policy.headroom)

    @property
    def apart(self) -> frozenset[frozenset[str]]:
        """A native job runs its model-stages one after the other."""
        return frozenset()

    def timed(self, flops_s: float | None) -> NativePricing:
        """At the declared fraction of this speed."""
        return replace(self, cost=_cost(self.job, flops_s or UNKNOWN_FLOPS))

    def lengths(self, mean: float, steps: range) -> Lengths:
        """The curriculum says how long responses may become."""
        return Lengths(mean, max(self.job.workload.cap_at(step) for step in steps))

    def batch(self, response_tokens: float) -> Batch:
        """A step whose responses are this long."""
        job = self.job
        return Batch(job.global_batch, job.workload.max_prompt_tokens, response_tokens, job.grpo.updates_per_step)

    def request(self, pool: Devices, lengths: Lengths, like: Plan | None = None) -> SearchRequest:
        """Eq. (1) with this job's numbers."""
        return SearchRequest(
            states=self.states,
            generates=self.generates,
            cost=self.cost,
            devices=pool.ids,
            node_of=pool.node_of,
            capacity_bytes=self.job.cluster.device.memory or 0,
            headroom=self.job.policy.headroom,
            mean=self.batch(lengths.mean),
            longest=self.batch(lengths.longest),
            micro_batches=self.job.policy.micro_batches,
            shapes={name: (stage.layout, stage.dp) for name, stage in like.stages.items()} if like else {},
        )

    def search(self, pool: Devices, lengths: Lengths, top: int, like: Plan | None = None) -> tuple[Target, ...]:
        """See Pricing."""
        found = search(self.request(pool, lengths, like), top)
        return tuple(
            Target({c.plan.stage: c.plan for c in choice.chosen}, choice.seconds, choice.peak_bytes, choice.placed)
            for choice in found
        )

    def step_seconds(self, plan: Plan, lengths: Lengths) -> float:
        """See Pricing."""
        return self.cost.step_seconds(plan, self.batch(lengths.mean), self.generates)

    def holder_seconds(self, plan: Plan, lengths: Lengths) -> Mapping[str, float]:
        """See Pricing."""
        return {name: self.cost.stage_seconds(stage, self.batch(lengths.mean)) for name, stage in plan.stages.items()}

    def peaks(self, plan: Plan, lengths: Lengths) -> Mapping[DeviceId, int]:
        """See Pricing."""
        return self.cost.peaks(plan, self.states, self.batch(lengths.longest))

    def efficiencies(self) -> Mapping[str, float]:
        """See Pricing."""
        return {name: v for role, known in self.cost.learnt.items() for name, v in known.achieved(role).items()}

    def assumed(self) -> Mapping[str, float]:
        """See Pricing: its devices are timed, not assumed, and what messages take is learnt from the first steps."""
        return {}

    def spent(self) -> Mapping[str, float]:
        """See Pricing."""
        return self.cost.spent()

    def learn(self, plan: Plan, lengths: Lengths, stage_s: Mapping[str, float], peak_bytes: int) -> NativePricing:
        """See Pricing. The ledger of a device is exact: its peak teaches nothing."""
        measured = tuple(
            Measurement(stage, self.batch(lengths.mean), stage_s[name])
            for name, stage in plan.stages.items()
            if stage_s.get(name, 0.0) > 0
        )
        return replace(self, cost=self.cost.learn(measured))


def _cost(job: Job, flops_s: float) -> CostModel:
    """The cost model before the job ran, of devices of the declared speed."""
    cluster = job.cluster
    speed = cluster.device.speed or 1.0
    return native_cost(job.model, job.dtype, flops_s * speed, cluster.device.memory or 0, cluster.num_devices)
