"""What the loop tells at a boundary, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nereus.control.checkpoint import Followed
from nereus.emu.plan import Plan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One completed RL step, before its weight sync."""

    step: int
    reward: float
    """Mean reward of the step's samples."""
    response_tokens_mean: float
    response_tokens_max: int
    num_samples: int
    loss: float
    kl: float
    grad_norm: float
    updates: int
    """Optimizer updates since the start."""
    stage_s: Mapping[str, float]
    """Wall seconds of each model-stage, and of the weight sync before the step; empty after a death in the step."""
    step_s: float
    late_s: float
    """By how much paced segments of all devices took longer than declared, see PaceReport."""
    declared_s: float
    """What the paced segments of all devices should have taken; 0 when unpaced."""
    peak_bytes: Mapping[EndpointId, int]
    """Highest use of each device's ledger during the step; that of a transition is in its outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The loop may go on, on these units."""

    epoch: int
    plan: Plan
    emus: Mapping[str, tuple[Emu, ...]]
    """The EMUs of each model-stage, in replica order."""
    sync_op: str
    """The installed operation that carries the trained weights to generation."""
    sync_members: tuple[EndpointId, ...]
    """Who takes part in it."""
    followed: Followed | None = None
    """The checkpoint whose step the loop has to take up, where the units come from one."""
