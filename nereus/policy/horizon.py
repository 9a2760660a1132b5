"""How long conditions are expected to hold: H_x, in RL steps (paper, section 4.3).

Each signal keeps an exponential moving average of the intervals between its crossings; the pool counts its changes. Updated
at crossings only, never by telemetry samples or admitted transitions. Before the first interval, H_x is one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

EMA_WEIGHT = 0.5
"""Weight of the newest interval: the last two decide three quarters, so a change of pace is followed in two crossings."""

FIRST_HORIZON_STEPS = 1.0
"""H_x before the first interval: nothing is known yet, so only what pays within a step is worth it."""


class Signal(StrEnum):
    """What is watched."""

    POOL = "pool"
    MEMORY = "memory"
    LENGTH = "length"
    COMPUTE = "compute"
    COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Horizons:
    """Intervals between crossings, by signal."""

    last_step: Mapping[Signal, int] = field(default_factory=dict)
    average_steps: Mapping[Signal, float] = field(default_factory=dict)

    def crossed(self, signal: Signal, step: int) -> Horizons:
        """The horizons after a crossing at `step`; two crossings in one step are one."""
        last = self.last_step.get(signal)
        if last == step:
            return self
        averages = dict(self.average_steps)
        if last is not None:
            interval = float(step - last)
            known = averages.get(signal)
            averages[signal] = interval if known is None else (1 - EMA_WEIGHT) * known + EMA_WEIGHT * interval
        return Horizons({**self.last_step, signal: step}, averages)

    def back(self, steps: int) -> Horizons:
        """The same when the job has gone back by so many steps: intervals go on from where it is."""
        return Horizons({signal: step - steps for signal, step in self.last_step.items()}, self.average_steps)

    def steps(self, signals: Iterable[Signal]) -> float:
        """H_x of the signals that triggered: the smallest; one step without any interval."""
        return min((self.average_steps.get(s, FIRST_HORIZON_STEPS) for s in signals), default=FIRST_HORIZON_STEPS)
