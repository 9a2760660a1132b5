"""The cost model: what was predicted beside what came."""

from __future__ import annotations

from deploy.grafana.panels import Board, Panel, Row, jobs, mean, ratio, series, stat


def _bias(of: str) -> Panel:
    return series(
        "Bias",
        "Predicted over measured, all added up. 1 is right; above it, too pessimistic.",
        "none",
        (ratio(f"nereus_cost_{of}_predicted_seconds_sum", f"nereus_cost_{of}_measured_seconds_sum"), "{{nereus_job}}"),
    )


def _error(of: str) -> Panel:
    return series(
        "Relative error",
        "Mean distance of a prediction from what came, over what came.",
        "percentunit",
        (ratio(f"nereus_cost_{of}_error_seconds_sum", f"nereus_cost_{of}_measured_seconds_sum"), "{{nereus_job}}"),
    )


def _beside(of: str, description: str) -> Panel:
    return series(
        "Predicted and measured",
        description,
        "s",
        (mean(f"nereus_cost_{of}_predicted_seconds"), "{{nereus_job}} predicted"),
        (mean(f"nereus_cost_{of}_measured_seconds"), "{{nereus_job}} measured"),
    )


STEPS = Row(
    "Steps",
    (
        _beside("step", "Mean time of a step, as the plan in force was priced, and as it was."),
        _bias("step"),
        _error("step"),
        stat(
            "Steps compared",
            "Steps of which a time was predicted.",
            "none",
            jobs("nereus_cost_step_predicted_seconds_count"),
            width=12,
        ),
        stat(
            "Age of the prediction",
            "Steps since the plan in force was last priced on what had been measured.",
            "none",
            jobs("nereus_cost_prediction_age_steps"),
            width=12,
        ),
    ),
)

TRANSITIONS = Row(
    "Transitions",
    (
        _beside("transition", "Mean time of a transition, as predicted and as it was; digests apart."),
        _bias("transition"),
        _error("transition"),
    ),
)

BOARD = Board(
    "nereus-cost-model",
    "Nereus / Cost model",
    "How well steps and transitions are predicted: decisions are only as good.",
    (STEPS, TRANSITIONS),
)
