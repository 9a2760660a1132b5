"""Devices: who is there, who comes and goes, and how full their memory is."""

from __future__ import annotations

from deploy.grafana.panels import Board, Row, increase, jobs, ratio, series, stat

POOL = Row(
    "Pool",
    (
        series(
            "Devices",
            "Devices that are there, ready or on notice.",
            "none",
            (jobs("nereus_devices"), "{{nereus_job}} {{state}}"),
            stacked=True,
        ),
        series(
            "Coming and going",
            "Arrivals, departures after a notice, and losses without one.",
            "none",
            (increase(jobs("nereus_devices_arrived_total")), "{{nereus_job}} arrived"),
            (increase(jobs("nereus_devices_departed_total")), "{{nereus_job}} departed"),
            (increase(jobs("nereus_devices_lost_total")), "{{nereus_job}} lost"),
        ),
        series(
            "Idle",
            "Devices that are there and unused by the plan in force. Long idle ones are paid for in vain.",
            "none",
            (jobs("nereus_devices_idle"), "{{nereus_job}}"),
        ),
        stat(
            "Idle share",
            "Share of the devices that are unused now.",
            "percentunit",
            f"{jobs('nereus_devices_idle')} / sum without (state) ({jobs('nereus_devices')})",
            width=8,
        ),
        stat(
            "Lost so far",
            "Devices that went without notice, since the start of the job.",
            "none",
            jobs("nereus_devices_lost_total"),
            width=8,
        ),
        stat("Waited for devices", "Since the start of the job.", "s", jobs("nereus_waited_seconds_total"), width=8),
    ),
)

MEMORY = Row(
    "Memory and load",
    (
        series(
            "Peak memory by device",
            "Highest use of each device in the latest step, beside what a plan may use.",
            "bytes",
            (jobs("nereus_device_peak_bytes"), "{{nereus_job}} {{device}}"),
            (jobs("nereus_device_usable_bytes"), "{{nereus_job}} usable"),
            width=12,
        ),
        series(
            "Fullest device",
            "Peak of the latest step over what a plan may use. Above 1 the headroom is being eaten.",
            "percentunit",
            (f"{jobs('nereus_step_peak_bytes')} / {jobs('nereus_device_usable_bytes')}", "{{nereus_job}}"),
            width=12,
        ),
        series(
            "Model-stages by device",
            "How many model-stages of the plan in force use each device; 0 is idle.",
            "none",
            (jobs("nereus_device_model_stages"), "{{nereus_job}} {{device}}"),
            width=12,
        ),
        series(
            "Lateness",
            "Emulated devices: by how much paced segments took longer than declared. Much: the machine is too small.",
            "percentunit",
            (ratio("nereus_late_seconds_total", "nereus_declared_seconds_total"), "{{nereus_job}}"),
            width=12,
        ),
    ),
)

BOARD = Board(
    "nereus-devices",
    "Nereus / Devices",
    "The devices of each job: who is there, who comes and goes, how full their memory is.",
    (POOL, MEMORY),
)
