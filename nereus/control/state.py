"""What the core knows of one job: a value that `step` replaces and never edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.control.announced import JobDescribed
from nereus.control.checkpoint import Checkpoint, Followed
from nereus.control.effects import Effect
from nereus.control.events import ReplanRequested
from nereus.control.phases import Idle, Phase
from nereus.control.report import Release, StepReport
from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.planner.pricing import Pricing
from nereus.policy.horizon import Horizons
from nereus.policy.snapshot import Snapshot
from nereus.policy.triggers import Reference
from nereus.spec.plan import ScriptedTransition
from nereus.spec.policy import CheckpointRule, Policy
from nereus.transition.collectives import GroupKey
from nereus.transition.estimate import LinkRates
from nereus.transition.learning import LearntLinks

LOOKAHEAD_STEPS = 2
"""Steps for which memory is predicted: a plan that is asked for at this boundary is in place at the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What stays the same over a job."""

    algorithm: str
    mode: str
    """sync or async."""
    policy: Policy
    first: Mapping[str, StagePlan]
    """The plan at the start."""
    states: Mapping[str, StateSpec]
    """The logical state of each model-stage."""
    trains: str
    """The model-stage whose weights the weight sync carries."""
    generates: str
    """The model-stage that receives them."""
    num_kv_heads: int
    """Of the models: with more TP ranks, neighbours hold the same heads and form a group."""
    node_of: Mapping[DeviceId, int]
    prior: Pricing
    """What a plan costs, as far as it is known before the job runs."""
    links: LinkRates = field(default_factory=LinkRates)
    """How fast state moves, as far as it is known before anything moved."""
    num_steps: int | None = None
    """RL steps of the job, where it has an end: nothing can pay after it."""
    pool_is_live: bool = False
    """Whether devices may come while the loop waits for a plan: not where the pool stays as it is."""
    checkpoint: CheckpointRule | None = None
    """When the state is saved; None for a job that cannot save it."""
    script: Mapping[int, ScriptedTransition] = field(default_factory=dict)
    """Transitions that the job declares, by the step after which they come."""

    @property
    def described(self) -> JobDescribed:
        """What watchers are told of it."""
        return JobDescribed(
            algorithm=self.algorithm,
            mode=self.mode,
            num_steps=self.num_steps,
            num_parameters=self.states[self.trains].num_parameters,
            usable_bytes=self.prior.usable_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A transition whose saving is being watched."""

    epoch: int
    predicted_s: float
    """Seconds per step that it was to save."""
    before_s: float
    """Mean seconds of the steps before it."""
    after_s: tuple[float, ...] = ()
    """Seconds of the steps since."""


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
    broken: frozenset[DeviceId] = frozenset()
    """Devices whose process died, and that the pool has not taken back: tried again when all workers start anew."""
    leaving: Mapping[DeviceId, int] = field(default_factory=dict)
    """Devices that go, and the step after which they are gone."""
    flops: Mapping[DeviceId, float] = field(default_factory=dict)
    step: int = 0
    """Completed RL steps."""
    report: StepReport | None = None
    reference: Reference | None = None
    horizons: Horizons = field(default_factory=Horizons)
    learnt: Pricing | None = None
    """The pricing once a step was measured."""
    moved: LearntLinks | None = None
    """How fast state moves, once a transition was measured."""
    groups: frozenset[GroupKey] = frozenset()
    """Communicators that stayed after the last commit, and are ready for the next transition."""
    cycle: int = 0
    """Replans so far."""
    answer_s: float | None = None
    """Seconds that the planner took for its last answer."""
    request: ReplanRequested | None = None
    """An operator's request that came at a bad moment, for the next boundary."""
    committed_s: tuple[float, ...] = ()
    """When the transitions of the last hour were committed."""
    recent_s: tuple[float, ...] = ()
    """Seconds of the last steps, as many as a canary looks at."""
    canary: Canary | None = None
    """The transition whose saving is being watched."""
    waiting_since_s: float | None = None
    """When the loop began to wait for a plan that fits."""
    pausing: bool = False
    """Whether an operator wants the loop to be held at its boundaries."""
    boundary_due: bool = False
    """Whether what a boundary leads to was put off by a pause."""
    previous: Mapping[str, StagePlan] | None = None
    """The stage plans before those in force; None before the first transition."""
    last_epoch: int = 0
    """The latest epoch that a transition was begun for; names of one that was not committed are not used again."""
    num_regroups: int = 0
    """Transitions and restores that ended before their commit since the last one that did not."""
    mid_step: bool = False
    """Whether the loop waits to do a step again, so that what stands is not the state of a boundary."""
    saved: Checkpoint | None = None
    """The latest checkpoint."""
    num_restarts: int = 0
    """Times that the job has gone back to it."""
    num_saves: int = 0
    """Saves that were begun, whole or not."""
    save_step: int = 0
    """The step of the latest save that was begun."""
    followed: Followed | None = None
    """The checkpoint that the units in force come from, until the loop has completed a step on them."""
    pool_ahead: int = 0
    """By how many of its steps an emulated pool is ahead of the job's."""
    pool_ended: bool = False
    """Whether nothing more will come or go."""

    @property
    def next_epoch(self) -> int:
        """The epoch of the next transition."""
        return max(self.plan.epoch, self.last_epoch) + 1

    @property
    def usable(self) -> tuple[DeviceId, ...]:
        """Devices that a plan may use: ready, and not leaving."""
        return tuple(sorted(device for device in self.endpoint_of if device not in self.leaving))

    @property
    def may_grow(self) -> bool:
        """Whether devices are on their way, or may come."""
        return bool(self.starting) or (self.config.pool_is_live and not self.pool_ended)

    @property
    def is_bare(self) -> bool:
        """Whether no unit stands, so that the next plan is restored from a checkpoint."""
        return bool(self.emus) and not any(self.emus.values())

    @property
    def bound(self) -> tuple[Emu, ...]:
        """All EMUs, model-stage by model-stage."""
        return tuple(emu for emus in self.emus.values() for emu in emus)

    @property
    def pricing(self) -> Pricing:
        """The cost model as calibrated so far, on the slowest device that was timed."""
        return self.learnt or self.config.prior.timed(min(self.flops.values(), default=None))

    @property
    def links(self) -> LinkRates:
        """How fast state moves, as learnt so far."""
        return self.moved.rates if self.moved else self.config.links

    @property
    def mean_tokens(self) -> float:
        """Mean response of the last step; before the first one, what the job expects of it."""
        if self.report is not None:
            return self.report.response_tokens_mean
        expected = self.config.prior.lengths(0.0, range(1, 2))
        return expected.mean or expected.longest

    @property
    def snapshot(self) -> Snapshot:
        """All that a decision is taken on."""
        config, pricing = self.config, self.pricing
        ahead = range(self.step + 1, self.step + 1 + LOOKAHEAD_STEPS)
        return Snapshot(
            plan=self.plan,
            emus=self.emus,
            endpoint_of=self.endpoint_of,
            node_of=config.node_of,
            usable=self.usable,
            states=config.states,
            pricing=pricing,
            lengths=pricing.lengths(self.mean_tokens, ahead),
            links=self.links,
            ready=self.groups,
            bucket_bytes=config.policy.bucket,
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
            followed=self.followed,
        )


def sync_op(epoch: int) -> str:
    """The id of an epoch's weight sync."""
    return f"e{epoch}.sync"


Result = tuple[JobState, tuple[Effect, ...]]
"""What an event leads to: the state after it, and the effects to carry out."""
