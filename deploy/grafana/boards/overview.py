"""The overview: which jobs there are, how training goes, and what adapting takes and gives."""

from __future__ import annotations

from deploy.grafana.panels import Board, Row, increase, jobs, mean, per_second, series, stat

NOW = Row(
    "Now",
    (
        stat(
            "Controllers answer",
            "Whether every controller answers; if not, figures are old.",
            "bool_yes_no",
            "min(nereus_controller_up)",
            "all",
        ),
        stat("Jobs", "Jobs that are served here.", "none", "sum(nereus_jobs)", "jobs"),
        stat("Steps", "RL steps that are complete.", "none", jobs("nereus_steps_total")),
        stat(
            "Progress",
            "Share of the job's steps that are complete; none for a job without an end.",
            "percentunit",
            f"{jobs('nereus_steps_total')} / {jobs('nereus_job_planned_steps')}",
        ),
        stat(
            "Devices",
            "Devices that are there, those on notice included.",
            "none",
            f"sum without (state) ({jobs('nereus_devices')})",
        ),
        stat("Paused", "Whether an operator holds the loop at its boundaries.", "bool_yes_no", jobs("nereus_job_paused")),
        stat(
            "What runs",
            "Algorithm and mode of each job; the figure is always 1.",
            "none",
            jobs("nereus_job_info"),
            "{{nereus_job}}: {{algorithm}}, {{mode}}",
            8,
        ),
        stat("Model", "Parameters of the model that is trained.", "short", jobs("nereus_job_parameters"), width=8),
        stat(
            "Plan epoch",
            "One more with each transition; 0 is the plan of the start.",
            "none",
            jobs("nereus_plan_epoch"),
            width=8,
        ),
    ),
)

TRAINING = Row(
    "Training",
    (
        series(
            "Reward",
            "Mean reward of the latest step. It should rise, whatever the layout does.",
            "none",
            (jobs("nereus_step_reward"), "{{nereus_job}}"),
        ),
        series(
            "Response length",
            "Mean and longest response of the latest step. Growing lengths call for other layouts.",
            "short",
            (jobs("nereus_step_response_tokens"), "{{nereus_job}} mean"),
            (jobs("nereus_step_response_tokens_max"), "{{nereus_job}} longest"),
        ),
        series(
            "Throughput",
            "Responses that are trained on, per second.",
            "short",
            (per_second(jobs("nereus_samples_total")), "{{nereus_job}}"),
        ),
        series(
            "Step time",
            "Mean wall time of a step, with the weight sync before it and without transitions.",
            "s",
            (
                f"{per_second(jobs('nereus_step_seconds_sum'))} / {per_second(jobs('nereus_step_seconds_count'))}",
                "{{nereus_job}}",
            ),
        ),
        series(
            "Time by model-stage",
            "Share of the wall time in each model-stage and in the weight sync: what is worth another layout.",
            "percentunit",
            (per_second(jobs("nereus_stage_seconds_sum")), "{{nereus_job}} {{model_stage}}"),
            stacked=True,
        ),
        series(
            "Loss, KL, gradient norm",
            "Of the latest step. A jump at a transition would be a bug: state is proved equal bit for bit.",
            "none",
            (jobs("nereus_step_loss"), "{{nereus_job}} loss"),
            (jobs("nereus_step_kl"), "{{nereus_job}} KL"),
            (jobs("nereus_step_grad_norm"), "{{nereus_job}} gradient norm"),
        ),
    ),
)

ADAPTING = Row(
    "Adapting",
    (
        series(
            "Transitions",
            "Transitions that were carried out, and those that ended before their commit.",
            "none",
            (increase(jobs("nereus_transitions_total")), "{{nereus_job}} carried out"),
            (increase(jobs("nereus_transitions_interrupted_total")), "{{nereus_job}} {{end}}"),
        ),
        series(
            "Time lost",
            "Share of the wall time in which the loop stood: for transitions, for devices, for checkpoints.",
            "percentunit",
            (per_second(jobs("nereus_transition_stall_seconds_sum")), "{{nereus_job}} transitions"),
            (per_second(jobs("nereus_waited_seconds_total")), "{{nereus_job}} waiting for devices"),
            (per_second(jobs("nereus_checkpoint_seconds_sum")), "{{nereus_job}} checkpoints"),
            stacked=True,
        ),
        series(
            "Verdicts",
            "Candidate plans by what was decided on them.",
            "none",
            (increase(jobs("nereus_decisions_total")), "{{nereus_job}} {{code}}"),
            stacked=True,
        ),
        stat(
            "Stall per transition",
            "Mean time that the loop stood for a transition.",
            "s",
            mean("nereus_transition_stall_seconds"),
            width=8,
        ),
        stat("Transitions so far", "Since the start of the job.", "none", jobs("nereus_transitions_total"), width=8),
        stat(
            "Returns to a checkpoint",
            "Since the start of the job; each repeats steps.",
            "none",
            jobs("nereus_checkpoint_restore_seconds_count"),
            width=8,
        ),
    ),
)

BOARD = Board(
    "nereus-overview",
    "Nereus / Overview",
    "The jobs at a glance: training, devices, and what adapting their parallelism takes and gives.",
    (NOW, TRAINING, ADAPTING),
)
