"""The core without a world: every effect has its facts, and a test chooses when, in which order and how often they come.

Core.post(event) -> step -> effects -> facts(effect) -> Core.pending
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from nereus.control.core import step
from nereus.control.effects import (
    AbortOps,
    BindUnits,
    Decision,
    Effect,
    InstallPrograms,
    Publish,
    QuiesceUnits,
    ReleaseBoundary,
    RequestPlan,
    RestoreState,
    RetireEndpoints,
    RunOp,
    SaveState,
    SealState,
    SeedUnits,
    SpawnDevices,
    StopJob,
    TakeDigests,
    TransitionRecord,
)
from nereus.control.events import (
    BoundaryReached,
    Committed,
    DeviceReady,
    DigestsTaken,
    Event,
    Installed,
    JobStarted,
    OpCompleted,
    PlanReady,
    Quiesced,
    Seeded,
    Settled,
    StateRead,
    StateSealed,
    StateWritten,
)
from nereus.control.report import StepReport
from nereus.control.state import JobConfig, JobState
from nereus.emu.digest import BoxDigest
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.saving import shares
from nereus.layout.tensors import CanonicalTensor
from nereus.policy.proposal import Proposal, propose
from nereus.policy.snapshot import Snapshot

ANSWER_S = 1.0
"""Seconds that the planner takes: so much of a step that the loop does not wait for it without need."""


class Core:
    """One job's state, what it asked for, and the facts that are on their way."""

    def __init__(self, config: JobConfig) -> None:
        self.state = JobState(config=config)
        self.events: list[tuple[Event, float]] = []
        self.effects: list[Effect] = []
        """All that was asked for so far."""
        self.pending: list[Event] = []
        self.now_s = 0.0
        self.births: dict[DeviceId, int] = {}
        self.plans = True
        """Whether the planner answers by itself."""

    # What happens

    def post(self, event: Event) -> tuple[Effect, ...]:
        """One event, and what the core asks for because of it; its facts come when they are delivered."""
        self.now_s += 1.0
        self.events.append((event, self.now_s))
        self.state, effects = step(self.state, event, self.now_s)
        self.effects += effects
        for effect in effects:
            self.pending += self.facts(effect)
        return effects

    def settle(self) -> None:
        """Deliver everything that is on its way, and what it leads to."""
        while self.pending:
            self.post(self.pending.pop(0))

    def start(self, devices: Iterable[DeviceId]) -> Core:
        self.post(JobStarted(devices=tuple(devices)))
        self.settle()
        return self

    def boundary(self, tokens: float = 6.0, step_number: int | None = None) -> tuple[Effect, ...]:
        """The next step is complete, with responses of this mean length."""
        number = self.state.step + 1 if step_number is None else step_number
        return self.post(BoundaryReached(report=report(self.state, number, tokens)))

    # What was asked for

    def asked(self, kind: type[Effect]) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def decisions(self) -> list[Decision]:
        return [e.news for e in self.effects if isinstance(e, Publish) and isinstance(e.news, Decision)]

    @property
    def records(self) -> list[TransitionRecord]:
        return [e.news for e in self.effects if isinstance(e, Publish) and isinstance(e.news, TransitionRecord)]

    @property
    def releases(self) -> int:
        return len(self.asked(ReleaseBoundary))

    @property
    def stop(self) -> str | None:
        stops = [effect.reason for effect in self.effects if isinstance(effect, StopJob)]
        return stops[0] if stops else None

    # What the world answers

    def facts(self, effect: Effect) -> Iterator[Event]:
        """The facts that complete an effect."""
        match effect:
            case SpawnDevices():
                for device in effect.devices:
                    yield DeviceReady(device=device, endpoint=self.endpoint(device), peak_flops=1e11)
            case RetireEndpoints():
                for endpoint in effect.endpoints:
                    device, _, birth = endpoint.removeprefix("d").partition(".")
                    self.births[int(device)] = int(birth) + 1
            case InstallPrograms():
                for program in effect.programs:
                    yield Installed(
                        endpoint=program.endpoint, epoch=program.epoch, setup_s=0.1, groups_made=1, groups_reused=0
                    )
            case SeedUnits():
                for endpoint in endpoints(effect.emus):
                    yield Seeded(endpoint=endpoint)
            case QuiesceUnits():
                for endpoint in endpoints(effect.emus):
                    yield Quiesced(endpoint=endpoint, epoch=effect.epoch)
            case TakeDigests():
                yield from self._digests(effect)
            case RunOp():
                for endpoint in effect.op.members:
                    yield OpCompleted(endpoint=endpoint, op=effect.op.id, bytes_received=1, seconds=0.1)
            case AbortOps():
                for endpoint in effect.endpoints:
                    done = {e.op for e, _ in self.events if isinstance(e, OpCompleted) and e.endpoint == endpoint}
                    mine = tuple(sorted(op for op in done if op.startswith(f"e{effect.epoch}.")))
                    yield Settled(endpoint=endpoint, epoch=effect.epoch, done=mine)
            case BindUnits():
                for endpoint in effect.endpoints:
                    yield Committed(endpoint=endpoint, epoch=effect.epoch, peak_bytes=1)
            case SaveState():
                parts = shares(self.state.config.states, effect.emus)
                for endpoint in effect.endpoints:
                    written = [(p.unit.stage, _counted(p.tensor, p.box)) for p in parts[endpoint]]
                    yield StateWritten(
                        endpoint=endpoint, tag=effect.tag, file=endpoint, num_bytes=1, sha256="", digests=tuple(written)
                    )
            case SealState():
                yield StateSealed(tag=effect.tag, folder=f"/checkpoints/{effect.tag}-step-{effect.step}")
            case RestoreState():
                for endpoint in endpoints(effect.emus):
                    yield StateRead(endpoint=endpoint, epoch=effect.epoch, num_bytes=1)
            case RequestPlan() if self.plans:
                yield plan_ready(effect.cycle, effect.snapshot, propose(effect.snapshot, effect.top))

    def endpoint(self, device: DeviceId) -> str:
        return f"d{device}.{self.births.get(device, 0)}"

    def _digests(self, effect: TakeDigests) -> Iterator[Event]:
        states = self.state.config.states
        for endpoint in endpoints(effect.emus):
            taken = []
            for emu in effect.emus:
                if endpoint in emu.endpoints:
                    shards = states[emu.stage].shards(emu.layout, emu.rank_of(endpoint))
                    boxes = [_counted(t, box) for t, held in shards.items() for box in held]
                    taken.append((emu.unit, tuple(boxes)))
            yield DigestsTaken(endpoint=endpoint, tag=effect.tag, digests=tuple(taken))


def _counted(tensor: CanonicalTensor, box: Box) -> BoxDigest:
    """A digest that counts elements."""
    return BoxDigest(tensor.ref, box, (box.volume, 7 * box.volume))


def endpoints(emus: Iterable[Emu]) -> list[str]:
    return sorted({endpoint for emu in emus for endpoint in emu.endpoints})


def plan_ready(cycle: int, snapshot: Snapshot, proposals: tuple[Proposal, ...], seconds: float = ANSWER_S) -> PlanReady:
    return PlanReady(cycle=cycle, proposals=proposals, current_l_step_s=snapshot.l_step_s(), seconds=seconds)


def report(state: JobState, number: int, tokens: float) -> StepReport:
    """A step that took a second in each model-stage on one device, and less on more."""
    stage_s = {name: 4.0 / len(stage.devices) for name, stage in state.plan.stages.items()}
    return StepReport(
        step=number,
        reward=0.0,
        response_tokens_mean=tokens,
        response_tokens_max=round(tokens),
        num_samples=12,
        loss=0.0,
        kl=0.0,
        grad_norm=0.0,
        updates=number,
        stage_s=stage_s,
        step_s=sum(stage_s.values()),
        late_s=0.0,
        declared_s=0.0,
        peak_bytes={},
    )


def with_proposals(answer: PlanReady, **changes: object) -> PlanReady:
    """The same answer with other figures in its first proposal, which is then the only one, and compiled."""
    first = replace(answer.proposals[0], compiled=True)
    return replace(answer, proposals=(replace(first, **changes),))  # type: ignore[arg-type]
