"""What a model-stage has to do: phases of equal slots on the slowest kind of pipeline rank, and what is serial.

Execution, Architecture -> Workload (training.py, generation.py) -> seconds (seconds.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nereus.cost.operations import Amounts, OpClass


def nothing() -> Amounts:
    """No work."""
    return np.zeros(len(OpClass))


@dataclass(frozen=True, slots=True)
class Phase:
    """Slots in which every pipeline rank does the same work again: one micro-batch, one token step."""

    slots: float
    """How many follow one another on the critical path, pipeline bubble included."""
    device: tuple[Amounts, ...]
    """Work of the accelerator in one slot, by kind of pipeline rank: the slowest counts."""
    host: tuple[Amounts, ...]
    """Launches of the host in one slot, in the same order: a floor under the device's time."""
    between: Amounts = field(default_factory=nothing)
    """Sends, and what they wait for, in one slot."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of one model-stage, once through."""

    phases: tuple[Phase, ...]
    serial: Amounts = field(default_factory=nothing)
    """What nothing overlaps."""
    hidden: Amounts = field(default_factory=nothing)
    """What hides behind the last slot of the first phase."""
    hides: float = 0.0
    """Share of that slot it may hide behind."""
    repeats: float = 1.0
    """Times that all of it happens."""
    sharpness: float = 6.0
    """Of the regime: how device and host time are joined."""
