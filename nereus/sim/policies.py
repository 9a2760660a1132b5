"""All policies by name: Nereus, what it is compared with, and the best that could have been done."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nereus.errors import UserError
from nereus.sim import judges
from nereus.sim.adaptive import Adaptive
from nereus.sim.baselines import restart, static_hindsight, static_per_budget, static_smallest
from nereus.sim.oracle import oracle
from nereus.sim.outcome import Outcome
from nereus.sim.scenario import Scenario


def nereus(scenario: Scenario) -> Outcome:
    """The controller as it is."""
    return Adaptive(scenario).run()


def always(scenario: Scenario) -> Outcome:
    """The controller without payback."""
    return Adaptive(scenario, "replan-always", judges.replan_always).run()


def per_component(scenario: Scenario) -> Outcome:
    """The controller with a payback of each model-stage."""
    return Adaptive(scenario, "per-component", judges.per_component).run()


POLICIES: Mapping[str, Callable[[Scenario], Outcome]] = {
    "nereus": nereus,
    "static-smallest": static_smallest,
    "static-per-budget": static_per_budget,
    "static-hindsight": static_hindsight,
    "replan-always": always,
    "per-component": per_component,
    "restart": restart,
    "oracle": oracle,
}


def simulate(scenario: Scenario, policy: str) -> Outcome:
    """One policy through a scenario. Raises UserError for a name that is none."""
    if policy not in POLICIES:
        raise UserError(f"--policy: {policy!r} is not allowed; it must be one of {', '.join(POLICIES)}")
    return POLICIES[policy](scenario)
