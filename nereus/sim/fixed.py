"""A job without a controller: it keeps its plan until it cannot, and then starts anew from a checkpoint.

    chooser(usable devices, step) -> plan -> steps -> ... -> the plan is no longer what the chooser wants, a device is gone,
    or memory has run out -> restart

What frameworks do today, and the paper's baselines. Whoever chooses has swept the settings that there are on the world's own
clock, so a baseline never loses for want of a measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nereus.emu.plan import DeviceId, Plan
from nereus.sim.adaptive import describe
from nereus.sim.checkpoints import Checkpoints
from nereus.sim.outcome import Cause, Ledger, Outcome, outcome
from nereus.sim.pool import Pool
from nereus.sim.scenario import Scenario
from nereus.sim.timeline import Change

Chooser: TypeAlias = Callable[[tuple[DeviceId, ...], int, Plan | None], Plan | None]
"""The plan that a job should have on these devices at a step, when it has this one now; None where none fits."""


class Fixed:
    """One run of one scenario."""

    def __init__(self, scenario: Scenario, name: str, choose: Chooser) -> None:
        self.ledger = Ledger()
        self._scenario, self._name, self._choose = scenario, name, choose
        self._pool = Pool(scenario.timeline)
        self._now_s = 0.0
        self._step = 0
        self._saved = Checkpoints(scenario.checkpoint_s)
        self._plan: Plan | None = None

    def run(self) -> Outcome:
        """The whole trace."""
        scenario = self._scenario
        while self._now_s < scenario.duration_s and self._step < scenario.max_steps:
            wanted = self._choose(self._pool.usable, self._step + 1, self._plan)
            if wanted is None:
                self._leave("no plan fits")
                self._wait()
            elif wanted != self._plan:
                self._begin(wanted)
            else:
                self._run_step(wanted)
        duration = min(self._now_s, scenario.duration_s)
        return outcome(self._name, self.ledger, duration, scenario.price_per_device_hour)

    def _begin(self, plan: Plan) -> None:
        """Start on a plan; a job that runs already saves first, at a boundary."""
        is_first = self._plan is None and not self.ledger.spans
        self._saved.save(self._step, self._now_s)
        self._plan = plan
        if not is_first:
            self._restart("another plan")

    def _restart(self, why: str) -> None:
        began = self._now_s
        self._pass_to(began + self._scenario.restart_s)
        self.ledger.spend(began, self._now_s, Cause.RESTART, why)

    def _leave(self, why: str) -> None:
        """The job has no plan any more; it was saved at the boundary where that became known."""
        if self._plan is not None:
            self._saved.save(self._step, self._now_s)
            self._plan = None

    def _wait(self) -> None:
        began = self._now_s
        self._pass_to(min(self._pool.coming_s, self._scenario.duration_s))
        if self._pool.coming_s <= self._now_s:
            self._pool.take()
        self.ledger.spend(began, self._now_s, Cause.PAUSED, "no plan fits")

    def _lost(self, began: float, cause: Cause, what: str) -> None:
        """The step failed and the processes are gone: on from the last checkpoint."""
        self.ledger.spend(began, self._now_s, cause, what)
        self.ledger.undo(self._step - self._saved.step)
        self._step, self._plan = self._saved.step, None

    def _run_step(self, plan: Plan) -> None:
        scenario, began, what = self._scenario, self._now_s, describe(plan)
        truth = scenario.step(plan, self._step + 1, began)
        end = began + truth.seconds
        while self._pool.coming_s <= end:
            self._advance(self._pool.coming_s)
            event = self._pool.take()
            if event.change is Change.NOTICE:
                self._saved.notice(self._step, self._now_s, event.gone_s, scenario.save_s)
            if not plan.devices <= self._pool.there:
                self._lost(began, Cause.REDONE, what)
                return
        self._advance(end)
        if truth.peak_bytes > scenario.capacity_bytes:
            self._lost(began, Cause.OUT_OF_MEMORY, what)
            return
        self._step += 1
        self.ledger.spend(began, end, Cause.STEPS, what)
        self.ledger.steps.append((truth.seconds, truth.response_tokens))
        self._saved.boundary(self._step, self._now_s)

    def _pass_to(self, until_s: float) -> None:
        while self._pool.coming_s <= until_s:
            self._advance(self._pool.coming_s)
            self._pool.take()
        self._advance(until_s)

    def _advance(self, until_s: float) -> None:
        """The clock, and what the devices that are there cost meanwhile."""
        self.ledger.device_s += max(until_s - self._now_s, 0.0) * len(self._pool.there)
        self._now_s = max(self._now_s, until_s)
