"""What became of a simulated run: how much was generated in how long, and where the rest of the time went.

Ledger (spent by cause, step by step) -> Outcome: throughput, time lost by cause, decisions, money, spans for a Gantt
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import Decision, TransitionRecord

SECONDS_PER_HOUR = 3600.0

MOST_POINTS = 1000
"""Points of a run's progress that are kept: as many as a chart is wide. Of longer runs every 2nd, 4th, ... is left."""


class Cause(StrEnum):
    """Where the time of a run goes."""

    STEPS = "steps"
    """RL steps whose results were kept."""
    TRANSITION = "transition"
    """The loop waits at a boundary while state moves, or for the plan to which it will move."""
    REDONE = "redone"
    """Steps that a lost device or a restart made void."""
    RESTART = "restart"
    """Saving a checkpoint, starting processes anew, reading it."""
    OUT_OF_MEMORY = "out_of_memory"
    """Steps that ended in an allocation that failed."""
    PAUSED = "paused"
    """No plan fits what is there."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, for the Gantt."""

    begin_s: float
    end_s: float
    cause: Cause
    what: str
    """The plan in force, or what happened."""


@dataclass
class Ledger:
    """What a run adds up to while it goes on."""

    spent_s: defaultdict[Cause, float] = field(default_factory=lambda: defaultdict(float))
    spans: list[Span] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    """Of each step that was kept: seconds, response tokens."""
    device_s: float = 0.0
    """Seconds of devices that were there, used or not."""
    decisions: list[Decision] = field(default_factory=list)
    transitions: list[TransitionRecord] = field(default_factory=list)
    checkpoints: list[Saved | Restored] = field(default_factory=list)
    """What a controller that saves by itself has written, and gone back to."""
    progress: list[tuple[float, int]] = field(default_factory=list)
    """When a step began, in seconds, and how many were done by then; thinned."""
    _stride: int = 1
    _skipped: int = 0

    def spend(self, begin_s: float, end_s: float, cause: Cause, what: str) -> None:
        """A stretch of time went into something; stretches that are alike and touch are one."""
        if end_s <= begin_s:
            return
        self.spent_s[cause] += end_s - begin_s
        if cause is Cause.STEPS:
            self._proceed(begin_s)
        last = self.spans[-1] if self.spans else None
        if last and (last.cause, last.what, last.end_s) == (cause, what, begin_s):
            self.spans[-1] = Span(last.begin_s, end_s, cause, what)
        else:
            self.spans.append(Span(begin_s, end_s, cause, what))

    def _proceed(self, begin_s: float) -> None:
        self._skipped += 1
        if self._skipped < self._stride and self.progress:
            return
        self._skipped = 0
        self.progress.append((begin_s, len(self.steps)))
        if len(self.progress) > MOST_POINTS:
            self.progress = self.progress[::2]
            self._stride *= 2

    def undo(self, num_steps: int) -> None:
        """The last steps are void: their time was for nothing."""
        for seconds, _ in self.steps[len(self.steps) - num_steps :]:
            self.spent_s[Cause.STEPS] -= seconds
            self.spent_s[Cause.REDONE] += seconds
        del self.steps[len(self.steps) - num_steps :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that has ended."""

    policy: str
    duration_s: float
    steps: int
    response_tokens: float
    """Of the steps that were kept."""
    spent_s: dict[Cause, float]
    cost: float | None
    """Money, where the outline has prices."""
    decisions: Sequence[Decision] = ()
    transitions: Sequence[TransitionRecord] = ()
    spans: Sequence[Span] = ()
    progress: Sequence[tuple[float, int]] = ()
    """When a step began, in seconds, and how many were done by then; of a long run not every step."""

    @property
    def throughput(self) -> float:
        """Response tokens per second, everything counted (paper, section 7: generated tokens over step latency)."""
        return self.response_tokens / self.duration_s if self.duration_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "policy": self.policy,
            "throughput_tokens_per_second": self.throughput,
            "duration_seconds": self.duration_s,
            "steps": self.steps,
            "response_tokens": self.response_tokens,
            "spent_seconds": {cause.value: self.spent_s.get(cause, 0.0) for cause in Cause},
            "cost": self.cost,
            "transitions": [
                {
                    "step": record.step,
                    "trigger": record.trigger,
                    "primitives": dict(record.primitives),
                    "seconds": record.outcome["seconds"],
                    "predicted_seconds": record.outcome["l_tran_predicted_s"],
                    "moved_bytes": record.outcome["bytes_moved"],
                    "plan": {name: str(plan) for name, plan in record.plan.stages.items()},
                }
                for record in self.transitions
            ],
            "decisions": [
                {
                    "step": decision.step,
                    "triggers": list(decision.triggers),
                    "code": str(decision.verdict.code),
                    "reason": decision.verdict.reason,
                    "target": dict(decision.target),
                }
                for decision in self.decisions
            ],
            "spans": [[span.begin_s, span.end_s, span.cause.value, span.what] for span in self.spans],
            "progress": [list(point) for point in self.progress],
        }


def outcome(policy: str, ledger: Ledger, duration_s: float, price_per_device_hour: float | None) -> Outcome:
    """What a ledger comes to. Of a stretch that lasts beyond the end, what lies beyond it is not counted."""
    hours = ledger.device_s / SECONDS_PER_HOUR
    beyond_s: defaultdict[Cause, float] = defaultdict(float)
    for span in ledger.spans:
        beyond_s[span.cause] += max(span.end_s - max(span.begin_s, duration_s), 0.0)
    return Outcome(
        policy=policy,
        duration_s=duration_s,
        steps=len(ledger.steps),
        response_tokens=sum(tokens for _, tokens in ledger.steps),
        spent_s={cause: float(ledger.spent_s[cause] - beyond_s[cause]) for cause in Cause},
        cost=None if price_per_device_hour is None else hours * price_per_device_hour,
        decisions=tuple(ledger.decisions),
        transitions=tuple(ledger.transitions),
        spans=tuple(
            Span(span.begin_s, min(span.end_s, duration_s), span.cause, span.what)
            for span in ledger.spans
            if span.begin_s < duration_s
        ),
        progress=tuple(ledger.progress),
    )
