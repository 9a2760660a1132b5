"""The metrics of checkpoints and of waits: a part of the table in metrics.py."""

from __future__ import annotations

from collections.abc import Callable

from nereus.api.exposition import Described, Samples, Source, Value
from nereus.runtime.tallies import Tallies


def _of(value: Callable[[Tallies], Value]) -> Callable[[Source], Samples]:
    return lambda source: [((), value(source.tallies))]


CHECKPOINT_METRICS = (
    Described(
        "Checkpoints",
        "summary",
        "nereus_checkpoint_seconds",
        "How long the loop stood for each checkpoint that was written or failed.",
        _of(lambda t: (t.saves + t.failed_saves, t.save_s)),
    ),
    Described(
        "Checkpoints",
        "counter",
        "nereus_checkpoint_failed_total",
        "Checkpoints that could not be written.",
        _of(lambda t: t.failed_saves),
    ),
    Described(
        "Checkpoints",
        "counter",
        "nereus_checkpoint_saved_bytes_total",
        "Bytes of the checkpoints that were written.",
        _of(lambda t: t.saved_bytes),
    ),
    Described(
        "Checkpoints",
        "summary",
        "nereus_checkpoint_restore_seconds",
        "Reading, proving and binding the state of a checkpoint, each time the job went back to one.",
        _of(lambda t: (t.restores, t.restore_s)),
    ),
    Described(
        "Checkpoints",
        "counter",
        "nereus_checkpoint_repeated_steps_total",
        "Completed RL steps that were run again because of it.",
        _of(lambda t: t.repeated_steps),
    ),
    Described(
        "Checkpoints",
        "counter",
        "nereus_waited_seconds_total",
        "How long the loop waited for devices, since no plan did fit, or for workers that started anew.",
        _of(lambda t: t.waited_s),
    ),
)
"""In the order of the document."""
