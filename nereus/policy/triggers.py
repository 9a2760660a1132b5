"""When to replan: hard triggers (the pool changed, memory will not do) and drift of what was measured (paper, section 4.1).

A drifting signal triggers when it differs from its reference value, its value at the last replan, by more than a relative
threshold. References are reset after every replan, on rejection too, so that a lasting deviation does not trigger each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.policy.horizon import Signal
from nereus.spec.policy import DELTA_COMMUNICATION, DELTA_COMPUTE, DELTA_LENGTH


@dataclass(frozen=True, slots=True)
class Reference:
    """What was true at the last replan."""

    response_tokens: float
    pool: frozenset[int]
    """Devices that could be used."""
    memory_short: bool = False
    """Whether the plan was predicted not to fit."""
    efficiencies: Mapping[str, float] = field(default_factory=dict)
    """Achieved over peak, by "compute/..." and "communication/..."; a class that is seen later joins when it is."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is true now."""

    response_tokens: float
    """Mean of the last step."""
    pool: frozenset[int]
    """Devices that can be used: there, and not leaving."""
    used: frozenset[int]
    """Devices that the current plan uses."""
    predicted_bytes: int
    """Peak of the current plan at the next step's longest responses."""
    usable_bytes: float
    """Memory of a device less headroom."""
    efficiencies: Mapping[str, float] = field(default_factory=dict)
    """As in the reference; empty where they were not looked at."""
    spent_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the last step spent in each class."""


@dataclass(frozen=True, slots=True)
class Deltas:
    """The relative thresholds delta_x of the drifting signals."""

    length: float = DELTA_LENGTH
    compute: float = DELTA_COMPUTE
    communication: float = DELTA_COMMUNICATION


DEFAULTS = Deltas()


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a replan is wanted."""

    signal: Signal
    urgent: bool
    """Whether the current plan cannot go on: payback is then waived."""
    reason: str
    """One sentence with the numbers."""
    crossed: bool = True
    """Whether the signal crossed now; an urgent cause that lasts triggers again without crossing again."""


def triggers(observed: Observed, reference: Reference, deltas: Deltas = DEFAULTS) -> tuple[Trigger, ...]:
    """Every signal that crossed, urgent ones first."""
    checks = (
        _pool(observed, reference),
        _memory(observed, reference),
        _length(observed, reference, deltas.length),
        _efficiency(Signal.COMPUTE, observed, reference, deltas.compute),
        _efficiency(Signal.COMMUNICATION, observed, reference, deltas.communication),
    )
    found = [trigger for trigger in checks if trigger is not None]
    return tuple(sorted(found, key=lambda trigger: not trigger.urgent))


def _pool(observed: Observed, reference: Reference) -> Trigger | None:
    changed = observed.pool != reference.pool
    lost = observed.used - observed.pool
    if not changed and not lost:
        return None
    change = f"the pool went from {len(reference.pool)} to {len(observed.pool)} devices"
    if lost:
        return Trigger(Signal.POOL, True, f"{change}; the plan uses {sorted(lost)}, which leave", changed)
    return Trigger(Signal.POOL, False, change)


def _memory(observed: Observed, reference: Reference) -> Trigger | None:
    if observed.predicted_bytes <= observed.usable_bytes:
        return None
    need, have = observed.predicted_bytes / 2**20, observed.usable_bytes / 2**20
    reason = f"the next step is predicted to need {need:.1f} MiB of {have:.1f} usable on a device"
    return Trigger(Signal.MEMORY, True, reason, crossed=not reference.memory_short)


def _length(observed: Observed, reference: Reference, delta: float) -> Trigger | None:
    if reference.response_tokens <= 0:
        return None
    change = observed.response_tokens / reference.response_tokens - 1
    if abs(observed.response_tokens - reference.response_tokens) <= delta * reference.response_tokens:
        return None
    lengths = f"{reference.response_tokens:.1f} to {observed.response_tokens:.1f} tokens"
    return Trigger(Signal.LENGTH, False, f"responses went from {lengths} ({change:+.0%})")


def _efficiency(signal: Signal, observed: Observed, reference: Reference, delta: float) -> Trigger | None:
    """Of the step as a whole: what it would have taken with the classes at their reference, over what they take now.

    A class that only one of both knows does not count: one that was learnt meanwhile is no drift.
    """
    known = [name for name in observed.efficiencies if name.startswith(f"{signal}/") and name in reference.efficiencies]
    now_s = sum(observed.spent_s.get(name, 0.0) for name in known)
    if not now_s:
        return None
    ratios = {name: observed.efficiencies[name] / reference.efficiencies[name] for name in known}
    change = sum(observed.spent_s.get(name, 0.0) * ratio for name, ratio in ratios.items()) / now_s - 1
    if abs(change) <= delta:
        return None
    return Trigger(signal, False, f"the {signal} efficiency has changed by {change:+.0%} over {len(known)} classes")
