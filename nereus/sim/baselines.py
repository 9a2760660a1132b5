"""What Nereus is compared with, as choosers of a job without a controller (paper, section 7).

static-smallest     one plan for the smallest pool of the trace, kept to the end
static-per-budget   for each number of devices the setting that was fastest at the start, restarted at each change
static-hindsight    the one plan that does best over the whole trace
restart             the fastest plan at the lengths of the moment, restarted at each change of the pool and each drift
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nereus.emu.plan import DeviceId, Plan
from nereus.sim.fixed import Fixed
from nereus.sim.outcome import Outcome
from nereus.sim.responses import Lengths
from nereus.sim.scenario import Scenario
from nereus.sim.sweep import Sweep

HINDSIGHT_BUDGETS = 6
"""Numbers of devices for which a plan to be kept is tried in hindsight: from the smallest to the largest pool."""


@dataclass
class Kept:
    """One plan for a number of devices: it is taken up wherever so many devices are there."""

    sweep: Sweep
    budget: int
    lengths: Lengths
    """At which the plan must fit and is the fastest."""

    def __call__(self, usable: tuple[DeviceId, ...], step: int, now: Plan | None) -> Plan | None:
        """See Chooser."""
        if now is not None and now.devices <= set(usable):
            return now
        if len(usable) < self.budget:
            return None
        return self.sweep.best(usable[: self.budget], self.lengths)


@dataclass
class PerBudget:
    """The fastest setting at the start for each GPU budget (the paper's baseline)."""

    sweep: Sweep
    lengths: Lengths
    """Of the first step."""
    _budget: int = field(default=-1, init=False)

    def __call__(self, usable: tuple[DeviceId, ...], step: int, now: Plan | None) -> Plan | None:
        """See Chooser. Where what was fastest at the start has run out of memory, the fastest that fits by now."""
        if now is not None and len(usable) == self._budget and now.devices <= set(usable):
            return now
        self._budget = len(usable)
        first = self.sweep.best(usable, self.lengths)
        at_present = self.sweep.scenario.curve.at(step)
        return first if first and self.sweep.fits(first, at_present) else self.sweep.best(usable, at_present)


@dataclass
class Restarting:
    """The fastest plan of the moment: looked for when the pool changes, or lengths have drifted."""

    sweep: Sweep
    _reference: tuple[tuple[DeviceId, ...], float] = field(default=((), 0.0), init=False)

    def __call__(self, usable: tuple[DeviceId, ...], step: int, now: Plan | None) -> Plan | None:
        """See Chooser."""
        lengths = self.sweep.scenario.curve.at(step)
        pool, mean = self._reference
        drifted = abs(lengths.mean - mean) > self.sweep.scenario.policy.delta_length * mean
        fits = now is not None and self.sweep.fits(now, lengths)
        if fits and pool == usable and not drifted:
            return now
        self._reference = usable, lengths.mean
        return self.sweep.best(usable, lengths)


def static_smallest(scenario: Scenario) -> Outcome:
    """One plan for the smallest pool that is not empty, at the longest responses."""
    budget = min(count for count in _counts(scenario) if count)
    return Fixed(scenario, "static-smallest", Kept(Sweep(scenario), budget, _longest(scenario))).run()


def static_per_budget(scenario: Scenario) -> Outcome:
    """The paper's baseline."""
    return Fixed(scenario, "static-per-budget", PerBudget(Sweep(scenario), scenario.curve.at(1))).run()


def static_hindsight(scenario: Scenario) -> Outcome:
    """The best of plans that are kept, each tried over the whole trace."""
    sweep, counts = Sweep(scenario), sorted({count for count in _counts(scenario) if count})
    tried = sorted({counts[round(at * (len(counts) - 1) / (HINDSIGHT_BUDGETS - 1))] for at in range(HINDSIGHT_BUDGETS)})
    found = [Fixed(scenario, "static-hindsight", Kept(sweep, count, _longest(scenario))).run() for count in tried]
    return max(found, key=lambda outcome: outcome.throughput)


def restart(scenario: Scenario) -> Outcome:
    """Checkpoint and restart at each change."""
    return Fixed(scenario, "restart", Restarting(Sweep(scenario))).run()


def _counts(scenario: Scenario) -> list[int]:
    timeline = scenario.timeline
    times = [0.0, *(event.time_s for event in timeline.events)]
    return [len(timeline.there(time)) for time in times]


def _longest(scenario: Scenario) -> Lengths:
    """The longest responses of the curve: a plan that is kept must survive them."""
    steps = [step for step, _ in scenario.curve.points if step <= scenario.max_steps] or [1]
    return max((scenario.curve.at(step) for step in steps), key=lambda lengths: lengths.longest)
