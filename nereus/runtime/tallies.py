"""Sums and counts over the news of one job: what the metrics are read from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tallies:
    """Sums and counts since the start of the job."""

    news: int = 0
    steps: int = 0
    samples: int = 0
    step_s: float = 0.0
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds by model-stage, and of the weight sync."""
    stage_runs: Counter[str] = field(default_factory=Counter)
    late_s: float = 0.0
    declared_s: float = 0.0
    decisions: Counter[str] = field(default_factory=Counter)
    """By verdict code."""
    transitions: int = 0
    primitives: Counter[str] = field(default_factory=Counter)
    interrupted: Counter[str] = field(default_factory=Counter)
    """Transitions that ended before their commit, by what they came to."""
    saves: int = 0
    """Checkpoints that were written."""
    failed_saves: int = 0
    save_s: float = 0.0
    """How long the loop stood for them, failed ones included."""
    saved_bytes: int = 0
    restores: int = 0
    """Returns to a checkpoint."""
    restore_s: float = 0.0
    repeated_steps: int = 0
    """Steps that were run again because of them."""
    waited_s: float = 0.0
    """How long the loop waited for devices, or for workers that started anew."""
    transition_s: float = 0.0
    stall_s: float = 0.0
    """How long the loop waited for transitions: moving, and proving that nothing was lost."""
    setup_s: float = 0.0
    bytes_moved: int = 0
    predicted_s: float = 0.0
    """What was predicted for `transition_s`."""
