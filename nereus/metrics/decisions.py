"""When the plan was looked at, what was decided on its candidates, and what those that had to pay have saved."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

from nereus.control.judging import OPERATOR_SIGNAL
from nereus.metrics.exposition import Described, Samples, Source, one
from nereus.policy.admission import Code
from nereus.policy.horizon import Signal
from nereus.runtime.projection import View

SIGNALS = (*(signal.value for signal in Signal), OPERATOR_SIGNAL)

OUTCOMES = {"kept": False, "returned": True}
"""Of a watched transition: whether the plan before came back."""


def _latest(field: str) -> Callable[[Source], Samples]:
    """Of the latest decision that was no dry run; not a number before the first, or where there is none."""
    return one(lambda source: _number(source.projection.latest_decision, field))


def _canary(field: str) -> Callable[[Source], Samples]:
    return one(lambda source: _number(source.projection.canary, field))


def _number(view: View | None, field: str) -> float:
    found = None if view is None else view[field]
    return nan if found is None else float(found)


OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Decisions",
        "counter",
        "nereus_replan_triggers_total",
        "Replans by what asked for them; several signals can cross at once.",
        lambda s: [((name,), s.tallies.signals[name]) for name in SIGNALS],
        ("signal",),
    ),
    Described(
        "Decisions",
        "summary",
        "nereus_replan_seconds",
        "How long the planner took for each answer.",
        one(lambda s: (s.tallies.replans, s.tallies.replan_s)),
    ),
    Described(
        "Decisions",
        "counter",
        "nereus_replan_proposals_total",
        "Candidate plans that the planner gave.",
        one(lambda s: s.tallies.proposals),
    ),
    Described(
        "Decisions",
        "counter",
        "nereus_decisions_total",
        "Candidate plans that were judged, by verdict.",
        lambda s: [((code.value,), s.tallies.decisions[code.value]) for code in Code],
        ("code",),
    ),
    Described(
        "Decisions",
        "gauge",
        "nereus_decision_gain_seconds",
        "Predicted saving per step of the latest candidate that was judged; NaN before the first.",
        _latest("delta_l_seconds"),
    ),
    Described(
        "Decisions",
        "gauge",
        "nereus_decision_cost_seconds",
        "Predicted time of the transition to it; NaN before the first.",
        _latest("l_tran_seconds"),
    ),
    Described(
        "Decisions",
        "gauge",
        "nereus_decision_payback_steps",
        "Steps until it has paid for its transition; NaN before the first, and where it saves nothing.",
        _latest("payback_steps"),
    ),
    Described(
        "Decisions",
        "gauge",
        "nereus_decision_horizon_steps",
        "Steps for which conditions were expected to hold then; NaN before the first.",
        _latest("horizon_steps"),
    ),
    Described(
        "Decisions",
        "summary",
        "nereus_admitted_gain_seconds",
        "Predicted saving per step of the plans that were admitted because they pay.",
        one(lambda s: (s.tallies.decisions[Code.ADMITTED.value], s.tallies.gain_s)),
    ),
    Described(
        "Decisions",
        "summary",
        "nereus_admitted_cost_seconds",
        "Predicted time of the transitions to them.",
        one(lambda s: (s.tallies.decisions[Code.ADMITTED.value], s.tallies.cost_s)),
    ),
    Described(
        "Decisions",
        "counter",
        "nereus_canaries_total",
        "Watched transitions whose saving was read, by what came of them.",
        lambda s: [((name,), s.tallies.canaries[returns]) for name, returns in OUTCOMES.items()],
        ("outcome",),
    ),
    Described(
        "Decisions",
        "gauge",
        "nereus_canary_predicted_seconds",
        "Saving per step for which the last watched transition was admitted; NaN before the first.",
        _canary("predicted_seconds"),
    ),
    Described(
        "Decisions",
        "gauge",
        "nereus_canary_realised_seconds",
        "Saving per step that it had; NaN before the first.",
        _canary("realised_seconds"),
    ),
    Described(
        "Decisions",
        "gauge",
        "nereus_canary_payback_steps",
        "Steps in which it really pays for itself; NaN before the first, and where it saved nothing.",
        _canary("payback_steps"),
    ),
)
