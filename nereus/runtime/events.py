"""What a run tells to whoever watches it, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nereus.emu.plan import DeviceId, Plan
from nereus.runtime.boundary import StepReport
from nereus.runtime.carry_out import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The first units are in place."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionReport:
    """A transition that was carried out."""

    step: int
    """Completed RL steps at its boundary."""
    epoch: int
    """The plan epoch that it began."""
    primitives: Mapping[str, int]
    joined: tuple[DeviceId, ...]
    left: tuple[DeviceId, ...]
    plan: Plan
    outcome: Outcome


Event = Started | StepReport | TransitionReport
