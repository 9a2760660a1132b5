"""What the core knows of one job: a value that `step` replaces and never edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.control.effects import Effect
from nereus.control.events import ReplanRequested
from nereus.control.phases import Idle, Phase
from nereus.control.report import Release, StepReport
from nereus.cost.batch import Batch
from nereus.cost.native import native_cost
from nereus.cost.step import CostModel
from nereus.emu.plan import DeviceId, Plan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.policy.horizon import Horizons
from nereus.policy.proposal import Snapshot
from nereus.policy.triggers import Reference
from nereus.spec.job import Job
from nereus.transition.estimate import LinkRates

LOOKAHEAD_STEPS = 2
"""Steps for which memory is predicted: a plan that is asked for at this boundary is in place at the next one."""

UNKNOWN_FLOPS = 1e10
"""FLOP/s of a device that was not timed: what a slow core does in float32, so that nothing is free before it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What stays the same over a job."""

    job: Job
    states: Mapping[str, StateSpec]
    trains: str
    generates: str
    node_of: Mapping[DeviceId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One job between two events."""

    config: JobConfig
    phase: Phase = field(default_factory=Idle)
    plan: Plan = field(default_factory=lambda: Plan(0, {}))
    emus: Mapping[str, tuple[Emu, ...]] = field(default_factory=dict)
    endpoint_of: Mapping[DeviceId, EndpointId] = field(default_factory=dict)
    """Devices that are ready, and who serves them."""
    sync_members: tuple[EndpointId, ...] = ()
    """Who takes part in the epoch's weight sync: not every endpoint sends or receives."""
    starting: frozenset[DeviceId] = frozenset()
    """Devices that have arrived and are not ready yet."""
    leaving: Mapping[DeviceId, int] = field(default_factory=dict)
    """Devices that go, and the step after which they are gone."""
    flops: Mapping[DeviceId, float] = field(default_factory=dict)
    step: int = 0
    """Completed RL steps."""
    report: StepReport | None = None
    reference: Reference | None = None
    horizons: Horizons = field(default_factory=Horizons)
    learnt: CostModel | None = None
    """The cost model once a step was measured."""
    links: LinkRates = field(default_factory=LinkRates)
    cycle: int = 0
    """Replans so far."""
    request: ReplanRequested | None = None
    """An operator's request that came at a bad moment, for the next boundary."""

    @property
    def usable(self) -> tuple[DeviceId, ...]:
        """Devices that a plan may use: ready, and not leaving."""
        return tuple(sorted(device for device in self.endpoint_of if device not in self.leaving))

    @property
    def bound(self) -> tuple[Emu, ...]:
        """All EMUs, model-stage by model-stage."""
        return tuple(emu for emus in self.emus.values() for emu in emus)

    @property
    def cost(self) -> CostModel:
        """The cost model as calibrated so far."""
        if self.learnt is not None:
            return self.learnt
        job, cluster = self.config.job, self.config.job.cluster
        return native_cost(job.model, job.dtype, self.device_flops, cluster.device.memory or 0, cluster.num_devices)

    @property
    def device_flops(self) -> float:
        """FLOP/s of one device: the slowest that was timed, times the declared speed."""
        return min(self.flops.values(), default=UNKNOWN_FLOPS) * (self.config.job.cluster.device.speed or 1.0)

    def batch(self, response_tokens: float) -> Batch:
        """A step whose responses are this long."""
        job = self.config.job
        return Batch(job.global_batch, job.workload.max_prompt_tokens, response_tokens, job.grpo.updates_per_step)

    @property
    def snapshot(self) -> Snapshot:
        """All that a decision is taken on."""
        config, workload = self.config, self.config.job.workload
        mean = self.report.response_tokens_mean if self.report else float(workload.cap_at(1))
        ahead = range(self.step + 1, self.step + 1 + LOOKAHEAD_STEPS)
        return Snapshot(
            plan=self.plan,
            emus=self.emus,
            endpoint_of=self.endpoint_of,
            node_of=config.node_of,
            usable=self.usable,
            states=config.states,
            generates=config.generates,
            cost=self.cost,
            links=self.links,
            capacity_bytes=config.job.cluster.device.memory or 0,
            headroom=config.job.policy.headroom,
            bucket_bytes=config.job.policy.bucket,
            micro_batches=config.job.policy.micro_batches,
            mean=self.batch(mean),
            longest=self.batch(max(workload.cap_at(step) for step in ahead)),
        )

    @property
    def release(self) -> Release:
        """What the loop runs its next step on."""
        return Release(
            epoch=self.plan.epoch,
            plan=self.plan,
            emus=dict(self.emus),
            sync_op=sync_op(self.plan.epoch),
            sync_members=self.sync_members,
        )


def sync_op(epoch: int) -> str:
    """The id of an epoch's weight sync."""
    return f"e{epoch}.sync"


Result = tuple[JobState, tuple[Effect, ...]]
"""What an event leads to: the state after it, and the effects to carry out."""
