"""A scenario: the job, the pool over time, response lengths, drift, and the world in which it all happens.

Outline, models, trace, lengths, drift, seed -> Scenario --plan, step, time--> StepTruth
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nereus.control.report import StepReport
from nereus.emu.plan import DeviceId, Plan
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.planner.outline_pricing import node_of
from nereus.sim.condition import USUAL, Condition
from nereus.sim.endpoints import Speeds
from nereus.sim.responses import Lengths, ResponseCurve
from nereus.sim.timeline import Timeline
from nereus.sim.truth import Truth
from nereus.spec.drift import Drift
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline
from nereus.spec.policy import CheckpointRule, Policy
from nereus.transition.estimate import LinkRates


@dataclass(frozen=True, slots=True)
class StepTruth:
    """What one step on a plan comes to."""

    seconds: float
    stage_s: Mapping[str, float]
    lengths: Lengths
    num_samples: int
    fullest: DeviceId
    peak_bytes: int
    """Of the fullest device; what is more than it has ends the step."""

    @property
    def response_tokens(self) -> float:
        """Of all its samples."""
        return self.num_samples * self.lengths.mean

    def report(self, step: int, endpoint_of: Mapping[DeviceId, EndpointId]) -> StepReport:
        """What a framework tells of the step of this number."""
        return StepReport(
            step=step,
            reward=0.0,
            response_tokens_mean=self.lengths.mean,
            response_tokens_max=round(self.lengths.longest),
            num_samples=self.num_samples,
            loss=0.0,
            kl=0.0,
            grad_norm=0.0,
            updates=step,
            stage_s=self.stage_s,
            step_s=self.seconds,
            late_s=0.0,
            declared_s=0.0,
            peak_bytes={endpoint_of[self.fullest]: self.peak_bytes},
        )


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that a run depends on beside its policy's name."""

    outline: Outline
    models: Mapping[str, HfModel]
    states: Mapping[str, StateSpec]
    timeline: Timeline
    curve: ResponseCurve
    truth: Truth
    drift: Drift | None = None
    policy: Policy = field(default_factory=lambda: Policy(adapt=True))
    speeds: Speeds = field(default_factory=Speeds)
    links: LinkRates = field(default_factory=LinkRates)
    max_steps: int = 10**9
    checkpoint_s: float = 1800.0
    """Seconds between checkpoints, which are written in the background: what was done since is lost with the last copy."""
    checkpoint: CheckpointRule | None = None
    """When the controller saves and restores the job by itself, which the loop waits for; None: `checkpoint_s` is all."""
    save_s: float = 60.0
    """A notice that comes so long before its end is time enough to write what the last boundary left."""
    restart_s: float = 240.0
    """From the end of a job's processes until it runs again: scheduling, imports, engines, reading the checkpoint."""

    @property
    def duration_s(self) -> float:
        """Of the trace."""
        return self.timeline.duration_s

    @cached_property
    def node_of(self) -> dict[DeviceId, int]:
        """The node of every device that the pool can have."""
        return node_of(self.outline)

    @property
    def price_per_device_hour(self) -> float | None:
        """The same for all; None where none is given, or node groups have different ones."""
        prices = {group.price_per_hour for group in self.outline.nodes}
        return prices.pop() if len(prices) == 1 else None

    def step(self, plan: Plan, step: int, time_s: float) -> StepTruth:
        """What a step on a plan really takes, if it begins at a time."""
        lengths = self.curve.at(step)
        condition = Condition.at(self.drift, time_s) if self.drift else USUAL
        seconds, tasks_s = self.truth.realised(step, plan, lengths, condition)
        names = (task.name for task in self.truth.step(plan, lengths, condition).composition.tasks)
        peaks = self.truth.peak_bytes(plan, lengths)
        fullest = max(peaks, key=lambda device: peaks[device])
        return StepTruth(
            seconds=seconds,
            stage_s=dict(zip(names, tasks_s, strict=True)),
            lengths=lengths,
            num_samples=self.outline.workload.global_batch,
            fullest=fullest,
            peak_bytes=peaks[fullest],
        )

    @cached_property
    def capacity_bytes(self) -> int:
        """Memory of the smallest device of the pool."""
        return min(group.memory_bytes for group in self.outline.nodes)
