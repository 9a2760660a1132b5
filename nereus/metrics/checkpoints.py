"""The checkpoints, the returns to one, and the waits."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Source, one

OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Checkpoints",
        "summary",
        "nereus_checkpoint_seconds",
        "How long the loop stood for each checkpoint that was written or failed.",
        one(lambda s: (s.tallies.saves + s.tallies.failed_saves, s.tallies.save_s)),
    ),
    Described(
        "Checkpoints",
        "counter",
        "nereus_checkpoint_failed_total",
        "Checkpoints that could not be written.",
        one(lambda s: s.tallies.failed_saves),
    ),
    Described(
        "Checkpoints",
        "counter",
        "nereus_checkpoint_saved_bytes_total",
        "Bytes of the checkpoints that were written.",
        one(lambda s: s.tallies.saved_bytes),
    ),
    Described(
        "Checkpoints",
        "summary",
        "nereus_checkpoint_restore_seconds",
        "Reading, proving and binding the state of a checkpoint, each time the job went back to one.",
        one(lambda s: (s.tallies.restores, s.tallies.restore_s)),
    ),
    Described(
        "Checkpoints",
        "counter",
        "nereus_checkpoint_repeated_steps_total",
        "Completed RL steps that were run again because of it.",
        one(lambda s: s.tallies.repeated_steps),
    ),
    Described(
        "Checkpoints",
        "counter",
        "nereus_waited_seconds_total",
        "How long the loop waited for devices, since no plan did fit, or for workers that started anew.",
        one(lambda s: s.tallies.waited_s),
    ),
)
