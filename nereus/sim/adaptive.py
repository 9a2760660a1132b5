"""A job under the real controller in a simulated world: the same Driver, core, planner and policy as `nereus run`.

    start -> release -> step (truth's seconds) -> BoundaryReached -> facts in virtual time -> release -> ...
                          | a notice is shorter than the step -> StepStopped -> a plan without what leaves -> the step again
                          | a device of the plan goes -> StepLost -> a plan from the intact units -> the step again
                          | the job stops -> a restart from its last checkpoint, on what is there

The core knows nothing of the simulation. It hears of the pool by notices, and of the world by the stage times of a step.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import Decision, TransitionRecord
from nereus.control.events import BoundaryReached, Event, JobStarted, PoolChanged, StepLost, StepStopped
from nereus.control.phases import Admitted, Waiting
from nereus.control.state import JobState
from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.errors import NereusError
from nereus.planner.first_plan import first_pricings
from nereus.planner.outline_pricing import OutlinePricing
from nereus.planner.pricing import Devices, Lengths, Pricing
from nereus.policy.notice import give_up_at
from nereus.policy.proposal import propose
from nereus.runtime.driver import Driver
from nereus.runtime.ports import Ports
from nereus.sim.checkpoints import Checkpoints
from nereus.sim.described import config_of
from nereus.sim.endpoints import Choose, SimPorts
from nereus.sim.facts import Facts, Unwritten
from nereus.sim.outcome import Cause, Ledger, Outcome, outcome
from nereus.sim.pool import Pool
from nereus.sim.scenario import Scenario, StepTruth
from nereus.sim.timeline import Change, PoolEvent

OVER_CAPACITY = 1.02
"""Of a device's memory, what a step that ran out of it is taken to need: the allocation that failed says no more."""

TOLD_STEPS = 1000
"""Steps after which the controller's news are taken over: a run of a million steps would else hold a report of each."""


class Adaptive:
    """One run of one scenario."""

    def __init__(self, scenario: Scenario, name: str = "nereus", choose: Choose = propose) -> None:
        self.ledger = Ledger()
        self._scenario, self._name, self._choose = scenario, name, choose
        self._facts = Facts()
        self._pool = Pool(scenario.timeline)
        self._step = 0
        self._saved = Checkpoints(scenario.checkpoint_s)
        self._began_s = 0.0
        self._driver: Driver | None = None
        self._ports: SimPorts | None = None
        self._driver_state: JobState | None = None
        """Of the controller before a restart: what it had learnt is saved with the job."""
        self._given_up: set[tuple[DeviceId, float]] = set()
        """Devices, and the end of the notice for which a step was given up."""
        self._back = 0
        """The epoch of the last checkpoint that the job went back to."""

    def run(self) -> Outcome:
        """The whole trace."""
        scenario = self._scenario
        while self._facts.now_s < scenario.duration_s and self._step < scenario.max_steps:
            if self._driver is None:
                self._start()
            else:
                self._run_step(self._driver)
        self._keep_news()
        duration = min(self._facts.now_s, scenario.duration_s)
        return outcome(self._name, self.ledger, duration, scenario.price_per_device_hour)

    # --- start and end of the job -------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Begin, or begin again: on the best plan for what is there, once there is one."""
        scenario, began = self._scenario, self._facts.now_s
        while (first := self._first_plan()) is None:
            if not self._pass_pool_event(scenario.duration_s):
                self._facts.now_s = scenario.duration_s
                self.ledger.spend(began, scenario.duration_s, Cause.PAUSED, "no plan fits")
                return
        self.ledger.spend(began, self._facts.now_s, Cause.PAUSED, "no plan fits")
        plan, prior = first
        ports = SimPorts(self._facts, scenario.states, scenario.truth, scenario.speeds, self._choose)
        outline, models, policy = scenario.outline, scenario.models, scenario.policy
        config = config_of(outline, models, scenario.states, plan, policy, scenario.checkpoint, prior)
        state = JobState(config=replace(config, links=scenario.links), step=self._step)
        if self._driver_state is not None:
            old = self._driver_state
            horizons = old.horizons.back(old.step - self._step)
            state = replace(state, learnt=old.learnt, horizons=horizons, moved=old.moved)
        self._driver = Driver(state, Ports(ports, ports, ports, ports), Unwritten(), self._facts.clock)
        self._ports, self._back = ports, 0
        ports.starts_at_once = True
        self._ask(JobStarted(devices=self._pool.usable))
        ports.starts_at_once = False

    def _first_plan(self) -> tuple[dict[str, StagePlan], OutlinePricing] | None:
        """The plan that the job begins with, and the pricing that it was found with; None while none fits."""
        scenario = self._scenario
        pool = Devices(self._pool.usable, scenario.node_of)
        if not pool.ids:
            return None
        if self._driver_state is None:
            known: Pricing = OutlinePricing(outline=scenario.outline, models=scenario.models)
        else:
            known = self._driver_state.pricing
        assert isinstance(known, OutlinePricing)
        expected = scenario.curve.at(self._step + 1)
        for pricing in first_pricings(known):
            lengths = pricing.lengths(expected.mean, range(self._step + 1, self._step + 2))
            for target in pricing.search(pool, lengths, 1):
                ids = {name: tuple(pool.ids[at] for at in plan.devices) for name, plan in target.stages.items()}
                return {name: replace(plan, devices=ids[name]) for name, plan in target.stages.items()}, pricing
        return None

    def _down(self, why: str) -> None:
        """The job has stopped: what was done since its last checkpoint is done again."""
        assert self._driver is not None
        self._keep_news()
        self._driver_state, self._driver, self._ports = self._driver.state, None, None
        self._facts.clear()
        self.ledger.undo(self._step - self._saved.step)
        self._step = self._saved.step
        began = self._facts.now_s
        self._pass_time(began + self._scenario.restart_s)
        self.ledger.spend(began, self._facts.now_s, Cause.RESTART, why)

    def _learn_limit(self, plan: Plan, truth: StepTruth) -> None:
        """An allocation failed: what the plan takes is known to be more than a device has."""
        assert self._driver_state is not None
        state, responses = self._driver_state, Lengths(truth.lengths.mean, truth.lengths.longest)
        least = round(OVER_CAPACITY * self._scenario.capacity_bytes)
        self._driver_state = replace(state, learnt=state.pricing.learn(plan, responses, {}, least))

    def _give_up_at(self, plan: Plan) -> float:
        """When the step that runs is given up for devices that leave, if it has not ended by then; never, for none.

        Nor for those for which one was given up already: a plan that stays on them has no way off.
        """
        leaving = self._pool.leaving.items() - self._given_up
        ends = [end for device, end in leaving if device in plan.devices]
        if not ends:
            return inf
        phase = self._driver.state.phase if self._driver else None
        l_tran_s = phase.l_tran_s if isinstance(phase, Admitted) else None
        return give_up_at(self._facts.now_s, self._began_s, min(ends), self._expected_s, l_tran_s)

    @property
    def _expected_s(self) -> float | None:
        """How long a step is expected to take, as the controller has learnt it; None before it has seen one."""
        state = self._driver.state if self._driver else None
        return state.snapshot.l_step_s() if state and state.learnt else None

    # --- a step -------------------------------------------------------------------------------------------------------

    def _run_step(self, driver: Driver) -> None:
        scenario, plan, began = self._scenario, driver.state.plan, self._facts.now_s
        truth = scenario.step(plan, self._step + 1, began)
        self._began_s = began
        end, given_up = began + truth.seconds, self._give_up_at(plan)
        what = describe(plan)
        while (event := self._next(min(end, given_up))) is not None:
            lost = plan.devices.intersection(event.gone) if isinstance(event, PoolChanged) else ()
            ending = {device: driver.state.endpoint_of[device] for device in lost if device in driver.state.endpoint_of}
            driver.post(event)
            if self._is_stopped or ending:
                self.ledger.spend(began, self._facts.now_s, Cause.REDONE, what)
                if not self._is_stopped:
                    self._ask(StepLost(endpoint=ending[min(ending)], during="a step"))
                else:
                    self._down("the last copy of a model-stage was lost")
                return
            given_up = self._give_up_at(plan)
        if given_up < end:
            self._facts.now_s = given_up
            self.ledger.spend(began, given_up, Cause.REDONE, what)
            self._given_up.update(self._pool.leaving.items())
            self._ask(StepStopped(step=self._step))
            return
        self._facts.now_s = end
        if truth.peak_bytes > scenario.capacity_bytes:
            self.ledger.spend(began, end, Cause.OUT_OF_MEMORY, what)
            self._down("out of memory")
            self._learn_limit(plan, truth)
            return
        self._step += 1
        self.ledger.spend(began, end, Cause.STEPS, what)
        self.ledger.steps.append((truth.seconds, truth.response_tokens))
        self.ledger.device_s += truth.seconds * len(self._pool.there)
        self._saved.boundary(self._step, self._facts.now_s)
        self._ask(BoundaryReached(report=truth.report(self._step, driver.state.endpoint_of), followed=self._back))
        if self._step % TOLD_STEPS == 0:
            self._keep_news()

    def _ask(self, event: Event) -> None:
        """Tell the controller, and wait for its release; time that passes goes into the transition."""
        assert self._driver is not None
        assert self._ports is not None
        began = self._facts.now_s
        self._ports.released = None
        self._driver.post(event)
        while self._ports.released is None and not self._is_stopped:
            fact = self._next(float("inf"))
            if fact is None and (not isinstance(self._driver.state.phase, Waiting) or self._driver.state.pool_ended):
                raise NereusError(f"the loop waits in {type(self._driver.state.phase).__name__}, and nothing is on its way")
            self._driver.post(fact or PoolChanged(step=self._step, arriving=(), leaving={}, ended=True))
        waited = self._facts.now_s
        self.ledger.device_s += (waited - began) * len(self._pool.there)
        back = self._followed()
        cause = Cause.RESTART if back or isinstance(event, JobStarted) else Cause.TRANSITION
        self.ledger.spend(began, waited, cause, "state moves")
        if self._is_stopped:
            self._down(self._ports.stopped or "")

    def _followed(self) -> bool:
        """Whether the release leads back to a checkpoint: the steps since then are run again."""
        assert self._driver is not None
        assert self._ports is not None
        released = self._ports.released
        if released is None or released.followed is None or released.followed.epoch == self._back:
            return False
        self.ledger.undo(self._step - self._driver.state.step)
        self._step, self._back = self._driver.state.step, released.followed.epoch
        return True

    @property
    def _is_stopped(self) -> bool:
        return self._ports is not None and self._ports.stopped is not None

    # --- time ---------------------------------------------------------------------------------------------------------

    def _next(self, until_s: float) -> Event | None:
        """The next fact or news of the pool up to a time, and the clock with it."""
        coming_s = self._pool.coming_s
        fact = self._facts.next(min(until_s, coming_s))
        if fact is not None or coming_s > until_s or coming_s == float("inf"):
            return fact
        self._facts.now_s = max(self._facts.now_s, coming_s)
        return self._pool_changed(self._pool.take())

    def _pool_changed(self, event: PoolEvent) -> PoolChanged:
        if event.change is Change.ARRIVED:
            return PoolChanged(step=self._step, arriving=event.devices, leaving={})
        if event.change is Change.GONE:
            return PoolChanged(step=self._step, arriving=(), leaving={}, gone=event.devices)
        self._saved.notice(self._step, self._facts.now_s, event.gone_s, self._scenario.save_s)
        return PoolChanged(step=self._step, arriving=(), leaving=dict.fromkeys(event.devices, self._last_step(event.gone_s)))

    def _last_step(self, until_s: float) -> int:
        """The step that is expected to be the last that ends before a time."""
        expected = self._expected_s
        return self._step + (max(int((until_s - self._began_s) / expected), 0) if expected else 0)

    def _pass_pool_event(self, until_s: float) -> bool:
        """Let time pass to the next change of the pool, with no job to tell; whether there was one."""
        coming_s = self._pool.coming_s
        if coming_s > until_s or coming_s == float("inf"):
            return False
        begin, self._facts.now_s = self._facts.now_s, max(self._facts.now_s, coming_s)
        self.ledger.device_s += (self._facts.now_s - begin) * len(self._pool.there)
        self._pool.take()
        return True

    def _pass_time(self, until_s: float) -> None:
        while self._pass_pool_event(until_s):
            pass
        self.ledger.device_s += (until_s - self._facts.now_s) * len(self._pool.there)
        self._facts.now_s = until_s

    def _keep_news(self) -> None:
        """Take over what the controller has told; its reports of steps are in the ledger already."""
        if self._driver is None:
            return
        for news in self._driver.news:
            if isinstance(news, Decision):
                self.ledger.decisions.append(news)
            elif isinstance(news, TransitionRecord):
                self.ledger.transitions.append(news)
            elif isinstance(news, Saved | Restored):
                self.ledger.checkpoints.append(news)
        self._driver.news.clear()


def describe(plan: Plan) -> str:
    """A plan in one line."""
    return "; ".join(f"{name} {stage.layout} dp{stage.dp}" for name, stage in plan.stages.items())
