"""How well the cost model has predicted what came."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Source, one

OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Cost model",
        "summary",
        "nereus_cost_transition_predicted_seconds",
        "What was predicted for the transitions that were carried out, scripted ones included.",
        one(lambda s: (s.tallies.predictions.transitions.count, s.tallies.predictions.transitions.predicted_s)),
    ),
    Described(
        "Cost model",
        "summary",
        "nereus_cost_transition_measured_seconds",
        "What the same transitions came to: predicted over measured is the bias.",
        one(lambda s: (s.tallies.predictions.transitions.count, s.tallies.predictions.transitions.measured_s)),
    ),
    Described(
        "Cost model",
        "summary",
        "nereus_cost_transition_error_seconds",
        "By how much each prediction was off, either way.",
        one(lambda s: (s.tallies.predictions.transitions.count, s.tallies.predictions.transitions.error_s)),
    ),
    Described(
        "Cost model",
        "summary",
        "nereus_cost_step_predicted_seconds",
        "What was predicted for the steps, when the plan in force was priced or admitted; steps without it are left out.",
        one(lambda s: (s.tallies.predictions.steps.count, s.tallies.predictions.steps.predicted_s)),
    ),
    Described(
        "Cost model",
        "summary",
        "nereus_cost_step_measured_seconds",
        "What the same steps came to: predicted over measured is the bias.",
        one(lambda s: (s.tallies.predictions.steps.count, s.tallies.predictions.steps.measured_s)),
    ),
    Described(
        "Cost model",
        "summary",
        "nereus_cost_step_error_seconds",
        "By how much each prediction was off, either way.",
        one(lambda s: (s.tallies.predictions.steps.count, s.tallies.predictions.steps.error_s)),
    ),
    Described(
        "Cost model",
        "gauge",
        "nereus_cost_prediction_age_steps",
        "Steps since the plan in force was last priced on what had been measured.",
        one(lambda s: s.tallies.predictions.step - s.tallies.predictions.replanned_step),
    ),
    Described(
        "Cost model",
        "counter",
        "nereus_late_seconds_total",
        "By how much the paced segments of all emulated devices took longer than declared.",
        one(lambda s: s.tallies.late_s),
    ),
    Described(
        "Cost model",
        "counter",
        "nereus_declared_seconds_total",
        "What these segments should have taken: late over declared is the lateness.",
        one(lambda s: s.tallies.declared_s),
    ),
)
