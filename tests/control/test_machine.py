"""The core under random events: whatever comes, in whatever order and however often, its invariants hold.

A rule is one event: a boundary, a change of the pool, a fact that is on its way or came before, an operator, a death, and a
restart of the controller, which replays its events and asks again for what it waits for.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nereus.control.carrying import Leg
from nereus.control.core import step
from nereus.control.effects import (
    AbortOps,
    BindUnits,
    Effect,
    InstallPrograms,
    QuiesceUnits,
    ReleaseBoundary,
    RestoreState,
    RetireEndpoints,
    RunOp,
    SaveState,
    SpawnDevices,
    StopJob,
    TakeDigests,
)
from nereus.control.events import (
    BoundaryReached,
    Committed,
    DeviceReady,
    DigestsTaken,
    EndpointDied,
    Event,
    Installed,
    OpCompleted,
    OperatorAsked,
    OpFailed,
    PlanReady,
    PoolChanged,
    Quiesced,
    ReplanRequested,
    StateRead,
    StateSealed,
    StateWritten,
    StepLost,
    Verb,
)
from nereus.control.phases import (
    Admitted,
    Idle,
    Planning,
    Restoring,
    Saving,
    Settling,
    Starting,
    Steady,
    Stopped,
    Transitioning,
    Waiting,
)
from nereus.control.resume import pending
from nereus.control.state import JobState
from nereus.policy.admission import Code
from nereus.spec.policy import CheckpointRule
from tests.control.harness import ANSWER_S, Core, endpoints, report
from tests.runtime.loop import adaptive_config

CONFIG = adaptive_config()
ALL = frozenset(range(8))
MORTAL = replace(adaptive_config(), pool_is_live=True, checkpoint=CheckpointRule(every_steps=1))
"""A job that saves its state at every quiet boundary, in a pool that may fall to zero and come back."""

FACTS = (Quiesced, Installed, OpCompleted, DigestsTaken, Committed, PlanReady, StateWritten, StateSealed, StateRead)
"""Facts that name the call that they complete, and may therefore come twice or late."""


class Controller(RuleBasedStateMachine):
    """One job of four to eight devices; the loop waits between a boundary and its release."""

    config = CONFIG
    least = 2
    """Devices that always stay."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(self.config)
        self.followed = 0
        self.core.plans = False
        self.loop_waits = True
        self.retired: set[str] = set()
        self.dead: set[str] = set()
        self.there: set[int] = set()
        self.seen: list[Event] = []

    # --- the world around the core

    def post(self, event: Event) -> None:
        before = self.core.state
        effects = self.core.post(event)
        self.seen.append(event)
        self.check_effects(before, effects)
        self.take(effects)

    def take(self, effects: tuple[Effect, ...]) -> None:
        """What effects do to the world."""
        for effect in effects:
            if isinstance(effect, RetireEndpoints):
                self.retired |= set(effect.endpoints)
            if isinstance(effect, ReleaseBoundary):
                self.loop_waits = False
                if effect.release.followed is not None:
                    self.followed = effect.release.followed.epoch
            if isinstance(effect, StopJob):
                self.loop_waits = False
        gone = self.retired | self.dead
        self.core.pending = [f for f in self.core.pending if getattr(f, "endpoint", None) not in gone]

    def check_effects(self, before: JobState, effects: tuple[Effect, ...]) -> None:
        state = self.core.state
        releases = [effect for effect in effects if isinstance(effect, ReleaseBoundary)]
        assert len(releases) <= 1, "one release for one boundary"
        if releases:
            assert self.loop_waits, "a release that nobody waits for"
            release = releases[0].release
            used = {endpoint for emus in release.emus.values() for endpoint in endpoints(emus)}
            assert not used & (self.dead | self.retired), "a release onto an endpoint that is gone"
            assert all(len(release.emus[name]) == stage.dp for name, stage in release.plan.stages.items())
        assert before.plan.epoch <= state.plan.epoch <= state.next_epoch - (not isinstance(state.phase, Idle))
        if state.plan.epoch == before.plan.epoch and not isinstance(before.phase, Idle | Starting):
            assert state.plan == before.plan
            assert set(state.bound) <= set(before.bound), "units come with a commit only"
        for effect in effects:
            assert not (named(effect) & self.retired), f"{type(effect).__name__} names a retired endpoint"

    # --- rules

    @initialize(extra=st.integers(0, 4))
    def start(self, extra: int) -> None:
        self.there = set(range(4 + extra))
        self.core.start(sorted(self.there))
        self.loop_waits = False

    def running(self) -> bool:
        """Whether the job goes on."""
        return not isinstance(self.core.state.phase, Stopped)

    def loop_runs(self) -> bool:
        return self.running() and not self.loop_waits

    @precondition(loop_runs)
    @rule(
        tokens=st.sampled_from([6.0, 9.0, 14.0, 24.0]),
        arriving=st.frozensets(st.sampled_from(sorted(ALL)), max_size=3),
        leaving=st.frozensets(st.sampled_from(sorted(ALL)), max_size=2),
        notice=st.integers(1, 3),
        changes=st.booleans(),
        quick=st.sampled_from([True, True, True, False]),
    )
    def boundary(
        self,
        tokens: float,
        arriving: frozenset[int],
        leaving: frozenset[int],
        notice: int,
        changes: bool,
        quick: bool,
    ) -> None:
        state = self.core.state
        now = state.step + 1
        gone = {device for device, end in state.leaving.items() if end <= now}
        came = sorted(arriving - self.there) if changes else []
        goes = (
            {d: now + notice for d in sorted(leaving) if d in state.endpoint_of and d not in state.leaving}
            if changes
            else {}
        )
        if len(set(state.usable) - set(goes)) < self.least:
            goes = {}
        self.loop_waits = True
        if came or goes or gone:
            self.there = (self.there | set(came)) - gone
            self.post(PoolChanged(step=now, arriving=tuple(came), leaving=goes, gone=tuple(sorted(gone))))
        if self.running():
            self.post(BoundaryReached(report=report(self.core.state, now, tokens), followed=self.followed))
        if quick:
            self.everything()

    @precondition(lambda self: self.running() and self.core.pending)
    @rule(place=st.integers(0, 1000))
    def fact(self, place: int) -> None:
        """One fact that is on its way."""
        self.post(self.core.pending.pop(place % len(self.core.pending)))

    @precondition(running)
    @rule()
    def everything(self) -> None:
        """All that is on its way, what it leads to, and the planner's answer."""
        while self.running() and (self.core.pending or isinstance(self.core.state.phase, Planning)):
            if self.core.pending:
                self.post(self.core.pending.pop(0))
            else:
                self.planner("real", ANSWER_S)

    @precondition(lambda self: self.running() and any(isinstance(e, FACTS) for e in self.seen))
    @rule(place=st.integers(0, 1000))
    def stale_fact(self, place: int) -> None:
        old = [event for event in self.seen if isinstance(event, FACTS)]
        event = old[place % len(old)]
        if getattr(event, "endpoint", None) not in self.retired | self.dead:
            self.post(event)

    @precondition(lambda self: isinstance(self.core.state.phase, Planning))
    @rule(
        answer=st.sampled_from(["real", "real", "real", "stale", "infeasible", "nothing"]),
        seconds=st.sampled_from([0.0, ANSWER_S]),
    )
    def planner(self, answer: str, seconds: float) -> None:
        """The planner answers the request that is open."""
        core, phase = self.core, self.core.state.phase
        assert isinstance(phase, Planning)
        (request,) = pending(core.state)[-1:]
        core.plans = True
        (ready,) = core.facts(request)
        core.plans = False
        assert isinstance(ready, PlanReady)
        if answer == "infeasible":
            worse = tuple(replace(p, infeasible=(Code.INFEASIBLE_MEMORY, "it does not fit")) for p in ready.proposals)
            ready = replace(ready, proposals=worse)
        elif answer == "nothing":
            ready = replace(ready, proposals=())
        elif answer == "stale":
            ready = replace(ready, cycle=ready.cycle - 1)
        self.post(replace(ready, seconds=seconds))

    @precondition(running)
    @rule(dry_run=st.booleans(), forced=st.booleans())
    def operator(self, dry_run: bool, forced: bool) -> None:
        self.post(ReplanRequested(command="x", dry_run=dry_run, forced=forced))

    @precondition(running)
    @rule(verb=st.sampled_from([Verb.PAUSE, Verb.RESUME, Verb.RESUME, Verb.ABORT, Verb.ROLLBACK]))
    def command(self, verb: Verb) -> None:
        self.post(OperatorAsked(command="y", verb=verb))

    def somebody_may_die(self) -> bool:
        return self.running() and len(self.core.state.usable) > 4 and len(self.dead) < 3

    @precondition(lambda self: self.somebody_may_die())
    @rule(place=st.integers(0, 1000), notices=st.booleans())
    def death(self, place: int, notices: bool) -> None:
        """A process dies; the loop may notice, since its step is lost."""
        endpoint = sorted(self.core.state.endpoint_of.values())[place % len(self.core.state.endpoint_of)]
        held = any(endpoint in emu.endpoints for emu in self.core.state.bound)
        runs = not self.loop_waits
        self.dead.add(endpoint)
        self.there -= {int(endpoint[1:].partition(".")[0])}
        self.core.births[int(endpoint[1:].partition(".")[0])] = int(endpoint.rpartition(".")[2]) + 1
        self.post(EndpointDied(endpoint=endpoint, during="something"))
        if self.running() and held and runs and notices:
            self.loop_waits = True
            self.post(StepLost(endpoint=endpoint, during="a step"))

    @precondition(lambda self: isinstance(self.core.state.phase, Transitioning))
    @rule(place=st.integers(0, 1000))
    def failure(self, place: int) -> None:
        """A call that is under way fails."""
        phase = self.core.state.phase
        assert isinstance(phase, Transitioning)
        calls = sorted(under_way(phase))
        endpoint, call = calls[place % len(calls)]
        self.core.pending = [
            fact for fact in self.core.pending if (getattr(fact, "endpoint", None), answers(fact)) != (endpoint, call)
        ]
        self.post(OpFailed(endpoint=endpoint, op=call, error="the disk is on fire"))

    @precondition(running)
    @rule()
    def restart(self) -> None:
        """The controller dies and comes back: what was on its way to it is lost, and is asked for again."""
        core = self.core
        state = self.replayed()
        assert state == core.state
        core.state = state
        lost = [fact for fact in core.pending if isinstance(fact, DeviceReady)]
        core.pending = lost  # the re-asking of devices is another test's
        for effect in pending(core.state):
            assert not (named(effect) & self.retired)
            core.pending += [f for f in core.facts(effect) if f not in core.pending]
        gone = self.retired | self.dead
        core.pending = [f for f in core.pending if getattr(f, "endpoint", None) not in gone]

    @precondition(lambda self: isinstance(self.core.state.phase, Stopped))
    @rule(place=st.integers(0, 1000))
    def anything_after_the_stop(self, place: int) -> None:
        before = self.core.state
        self.post(self.seen[place % len(self.seen)])
        assert self.core.state == before

    # --- what always holds

    def replayed(self) -> JobState:
        state = JobState(config=self.config)
        for event, at_s in self.core.events:
            state, _ = step(state, event, at_s)
        return state

    @invariant()
    def every_stage_has_a_unit(self) -> None:
        """While state moves, those that are whole may be on their way to the next plan; or none is, and all are on disk."""
        state = self.core.state
        if not isinstance(state.phase, Idle | Starting | Stopped):
            assert set(state.emus) == set(self.config.states)
            saved = state.is_bare and state.saved is not None
            bare = saved and isinstance(state.phase, Waiting | Planning | Admitted | Restoring)
            assert all(state.emus.values()) or bare or isinstance(state.phase, Transitioning | Settling)

    @invariant()
    def units_of_a_stage_share_a_layout_and_no_device(self) -> None:
        state = self.core.state
        for name, emus in state.emus.items():
            assert {emu.layout for emu in emus} <= {state.plan.stages[name].layout}
            named = [endpoint for emu in emus for endpoint in emu.endpoints]
            assert len(named) == len(set(named))

    @invariant()
    def units_are_on_endpoints_that_are_there(self) -> None:
        state = self.core.state
        if not isinstance(state.phase, Stopped):
            assert set(endpoints(state.bound)) <= set(state.endpoint_of.values())

    @invariant()
    def devices_of_the_plan_are_there_unless_it_is_being_left(self) -> None:
        state = self.core.state
        if not isinstance(state.phase, Stopped) and not recovering(state):
            assert state.plan.devices <= set(state.endpoint_of)

    def teardown(self) -> None:
        """Replaying gives what is live."""
        assert self.replayed() == self.core.state

    @invariant()
    def stopped_job_says_why(self) -> None:
        phase = self.core.state.phase
        if isinstance(phase, Stopped):
            assert phase.reason == self.core.stop
            assert len(phase.reason) > 10

    @invariant()
    def phase_that_waits_is_waited_for(self) -> None:
        """Whoever waits has something on its way: a fact, an answer of the planner, or the loop's next boundary."""
        state = self.core.state
        if isinstance(state.phase, Transitioning | Settling | Saving | Restoring):
            assert self.core.pending
        if isinstance(state.phase, Waiting):
            assert self.core.pending or state.may_grow
        if isinstance(state.phase, Steady) and self.loop_waits:
            raise AssertionError("the loop waits, and nobody will release it")
        if isinstance(state.phase, Admitted) and self.loop_waits:
            raise AssertionError("the loop waits for a plan that waits for the loop")


def recovering(state: JobState) -> bool:
    """Units are gone, and the plan that leaves them is not in force yet."""
    return sum(len(emus) for emus in state.emus.values()) < sum(stage.dp for stage in state.plan.stages.values())


def under_way(moving: Transitioning) -> set[tuple[str, str]]:
    """The calls of a transition that are not answered, and on whom."""
    carrying = moving.carrying
    epoch = carrying.task.epoch
    if carrying.leg in (Leg.MOVE, Leg.HELD):
        return {(endpoint, op) for op, members in carrying.running.items() for endpoint in members}
    call = {
        Leg.QUIESCE: f"quiesce e{epoch}",
        Leg.INSTALL: f"install e{epoch}",
        Leg.BIND: f"bind e{epoch}",
        Leg.DIGEST_BEFORE: f"digest e{epoch}.before",
    }
    return {(endpoint, call.get(carrying.leg, f"digest e{epoch}.after")) for endpoint in carrying.waiting}


def answers(fact: Event) -> str:
    """The call that a fact answers."""
    match fact:
        case OpCompleted():
            return fact.op
        case Quiesced():
            return f"quiesce e{fact.epoch}"
        case Installed():
            return f"install e{fact.epoch}"
        case Committed():
            return f"bind e{fact.epoch}"
        case DigestsTaken():
            return f"digest {fact.tag}"
        case StateWritten():
            return f"save {fact.tag}"
        case StateRead():
            return f"restore e{fact.epoch}"
    return ""


def named(effect: Effect) -> set[str]:
    """The endpoints that an effect calls."""
    match effect:
        case InstallPrograms():
            return {program.endpoint for program in effect.programs}
        case RunOp():
            return set(effect.op.members)
        case TakeDigests() | QuiesceUnits():
            return set(endpoints(effect.emus))
        case BindUnits() | AbortOps() | SaveState():
            return set(effect.endpoints)
        case RestoreState():
            return set(endpoints(effect.emus))
        case SpawnDevices():
            return set()
    return set()


class MortalController(Controller):
    """The same in a pool that may fall to zero: what is lost with the last device is read from the latest checkpoint."""

    config = MORTAL
    least = 0

    def somebody_may_die(self) -> bool:
        """Once there is a checkpoint, to which the job goes back so often at most."""
        state = self.core.state
        return self.running() and bool(state.endpoint_of) and state.saved is not None and state.num_restarts < 3

    @precondition(lambda self: self.somebody_may_die())
    @rule(notices=st.booleans())
    def blackout(self, notices: bool) -> None:
        """Every process dies, one after the other."""
        runs = not self.loop_waits
        for endpoint in sorted(self.core.state.endpoint_of.values()):
            self.dead.add(endpoint)
            self.core.births[int(endpoint[1:].partition(".")[0])] = int(endpoint.rpartition(".")[2]) + 1
            if endpoint not in self.retired and self.running():
                self.post(EndpointDied(endpoint=endpoint, during="a blackout"))
        if self.running() and runs and notices:
            self.loop_waits = True
            self.post(StepLost(endpoint="d0.0", during="a step"))

    @precondition(lambda self: self.running() and isinstance(self.core.state.phase, Waiting))
    @rule(arriving=st.frozensets(st.sampled_from(sorted(ALL)), min_size=1, max_size=6), runs_out=st.booleans())
    def pool_goes_on(self, arriving: frozenset[int], runs_out: bool) -> None:
        """While the job waits, notices run out and devices come."""
        state = self.core.state
        gone = tuple(sorted(state.leaving)) if runs_out else ()
        came = tuple(sorted(arriving - self.there - state.starting))
        self.there = (self.there | set(came)) - set(gone)
        self.post(PoolChanged(step=state.step, arriving=came, leaving={}, gone=gone, ahead=state.pool_ahead + 1))

    @precondition(lambda self: isinstance(self.core.state.phase, Saving))
    @rule(place=st.integers(0, 1000))
    def failed_save(self, place: int) -> None:
        """A disk is full: the job goes on without the checkpoint, and keeps the one before."""
        phase, saved = self.core.state.phase, self.core.state.saved
        assert isinstance(phase, Saving)
        writers = sorted(phase.waiting)
        who, call = (writers[place % len(writers)], "save") if writers else ("job", "seal")
        self.core.pending = [f for f in self.core.pending if not (isinstance(f, StateSealed) and call == "seal")]
        self.post(OpFailed(endpoint=who, op=f"{call} {phase.tag}", error="no space is left"))
        assert self.core.state.saved == saved
        assert not isinstance(self.core.state.phase, Saving)

    @invariant()
    def a_checkpoint_is_of_a_completed_step(self) -> None:
        state = self.core.state
        if state.saved is not None:
            assert state.saved.step <= state.step
            assert {stage for stage, _, _ in state.saved.digests} == set(self.config.states)

    @invariant()
    def a_restore_leads_to_the_step_of_its_checkpoint(self) -> None:
        state = self.core.state
        if state.followed is not None:
            assert state.saved is not None
            assert state.step == state.saved.step


TestController = Controller.TestCase
TestController.settings = settings(
    max_examples=25, stateful_step_count=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)

TestMortalController = MortalController.TestCase
TestMortalController.settings = settings(
    max_examples=25, stateful_step_count=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
