"""Planner and transitions: why plans change, what they were to save, how state moves, where model-stages are."""

from __future__ import annotations

from deploy.grafana.panels import Board, Row, increase, jobs, mean, per_second, ratio, series, stat

PLANNING = Row(
    "Planning",
    (
        series(
            "Replans by signal",
            "What asked for another look at the plan: a pool that changes, memory, drift, an operator.",
            "none",
            (increase(jobs("nereus_replan_triggers_total")), "{{nereus_job}} {{signal}}"),
            stacked=True,
        ),
        series(
            "Verdicts",
            "Candidates by what was decided on them. Only rejections: the plan in force is near the best.",
            "none",
            (increase(jobs("nereus_decisions_total")), "{{nereus_job}} {{code}}"),
            stacked=True,
        ),
        series(
            "Planner's time",
            "Mean time of an answer of the planner, in a process of its own: the loop goes on meanwhile.",
            "s",
            (mean("nereus_replan_seconds"), "{{nereus_job}}"),
        ),
        series(
            "Gain and cost of the latest candidate",
            "Predicted saving per step, and predicted time of the transition to it.",
            "s",
            (jobs("nereus_decision_gain_seconds"), "{{nereus_job}} gain per step"),
            (jobs("nereus_decision_cost_seconds"), "{{nereus_job}} cost"),
        ),
        series(
            "Payback and horizon",
            "Steps until the latest candidate has paid, beside those for which conditions should hold; none without a gain.",
            "short",
            (jobs("nereus_decision_payback_steps"), "{{nereus_job}} payback"),
            (jobs("nereus_decision_horizon_steps"), "{{nereus_job}} horizon"),
        ),
        series(
            "Candidates per replan",
            "Mean number of plans that the planner proposes.",
            "short",
            (ratio("nereus_replan_proposals_total", "nereus_replan_seconds_count"), "{{nereus_job}}"),
        ),
    ),
)

PAYING = Row(
    "What paid",
    (
        stat(
            "Admitted to pay",
            "Plans that were admitted because they pay.",
            "none",
            jobs("nereus_admitted_gain_seconds_count"),
            width=6,
        ),
        stat("Their predicted gain", "Mean predicted saving per step.", "s", mean("nereus_admitted_gain_seconds"), width=6),
        stat(
            "Their predicted cost",
            "Mean predicted time of the transitions to them.",
            "s",
            mean("nereus_admitted_cost_seconds"),
            width=6,
        ),
        stat(
            "Watched",
            "Transitions whose saving was read (policy.canary_steps), by what came of them.",
            "none",
            jobs("nereus_canaries_total"),
            "{{nereus_job}} {{outcome}}",
            6,
        ),
        series(
            "Predicted and realised saving",
            "Of the last watched transition, per step; none without policy.canary_steps.",
            "s",
            (jobs("nereus_canary_predicted_seconds"), "{{nereus_job}} predicted"),
            (jobs("nereus_canary_realised_seconds"), "{{nereus_job}} realised"),
            width=12,
        ),
        series(
            "Realised payback",
            "Steps in which the last watched transition really pays for itself.",
            "short",
            (jobs("nereus_canary_payback_steps"), "{{nereus_job}}"),
            width=12,
        ),
    ),
)

MOVING = Row(
    "Transitions",
    (
        series(
            "Mean time",
            "Predicted, measured, and how long the loop stood (digests and coming to rest included).",
            "s",
            (mean("nereus_cost_transition_predicted_seconds"), "{{nereus_job}} predicted"),
            (mean("nereus_transition_seconds"), "{{nereus_job}} measured"),
            (mean("nereus_transition_stall_seconds"), "{{nereus_job}} stall"),
        ),
        series(
            "Set-up share",
            "Share of the time of transitions in which communicators are made.",
            "percentunit",
            (ratio("nereus_transition_setup_seconds_total", "nereus_transition_seconds_sum"), "{{nereus_job}}"),
        ),
        series(
            "Primitives",
            "What transitions are made of.",
            "none",
            (increase(jobs("nereus_transition_primitives_total")), "{{nereus_job}} {{primitive}}"),
            stacked=True,
        ),
        series(
            "Bytes moved",
            "Between endpoints; and those of all operations, by whether an operation stays on one node.",
            "bytes",
            (increase(jobs("nereus_transition_moved_bytes_total")), "{{nereus_job}} moved"),
            (increase(jobs("nereus_transition_operation_bytes_total")), "{{nereus_job}} {{path}}"),
        ),
        series(
            "Peak memory",
            "Of the fullest device in the last transition, beside what a plan may use.",
            "bytes",
            (jobs("nereus_transition_peak_bytes"), "{{nereus_job}} in the transition"),
            (jobs("nereus_device_usable_bytes"), "{{nereus_job}} usable"),
        ),
        series(
            "Ended early",
            "Transitions that ended before their commit; state is whole after each of them.",
            "none",
            (jobs("nereus_transitions_interrupted_total"), "{{nereus_job}} {{end}}"),
        ),
    ),
)

PLACES = Row(
    "The plan in force",
    (
        series(
            "Degrees of parallelism",
            "TP, PP and DP of each model-stage.",
            "none",
            (jobs("nereus_placement_degree"), "{{nereus_job}} {{model_stage}} {{axis}}"),
        ),
        series(
            "Devices",
            "Devices that each model-stage is on.",
            "none",
            (jobs("nereus_placement_devices"), "{{nereus_job}} {{model_stage}}"),
        ),
        series(
            "Micro-batch",
            "Sequences of one replica that go through the model together.",
            "none",
            (jobs("nereus_placement_micro_batch"), "{{nereus_job}} {{model_stage}}"),
        ),
    ),
)

SAVING = Row(
    "Checkpoints",
    (
        series(
            "Written",
            "Checkpoints that were written or failed, and returns to one.",
            "none",
            (increase(jobs("nereus_checkpoint_seconds_count")), "{{nereus_job}} written or failed"),
            (increase(jobs("nereus_checkpoint_failed_total")), "{{nereus_job}} failed"),
            (increase(jobs("nereus_checkpoint_restore_seconds_count")), "{{nereus_job}} returns"),
        ),
        series(
            "Bytes",
            "Of the checkpoints that were written.",
            "Bps",
            (per_second(jobs("nereus_checkpoint_saved_bytes_total")), "{{nereus_job}}"),
        ),
        series(
            "Steps run again",
            "Completed steps that a return to a checkpoint has run again.",
            "none",
            (jobs("nereus_checkpoint_repeated_steps_total"), "{{nereus_job}}"),
        ),
    ),
)

BOARD = Board(
    "nereus-planner",
    "Nereus / Planner and transitions",
    "Why plans change, what that was to save and did save, how state moves, and where each model-stage is.",
    (PLANNING, PAYING, MOVING, PLACES, SAVING),
)
