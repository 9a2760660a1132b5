"""How good predictions are: the choice among all configurations of a group, their order, their times, their memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from benchmarks.costing.measured import Row

NEAR = 0.10
"""A choice within this share of the best counts as near."""

CLOSE = 2.0
"""Latency errors are judged among configurations within this factor of the best: nobody runs the others."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What a contestant says of a configuration."""

    row: Row
    seconds: float
    """A score in any unit where only the order is judged."""
    fits: bool = True
    peak_bytes: float | None = None
    cost: float | None = None
    """What a choice goes by, where that is not the seconds."""


def preference(guess: Guess) -> tuple[bool, float, tuple[int, ...]]:
    """The order in which configurations are chosen."""
    return (not guess.fits, guess.seconds if guess.cost is None else guess.cost, guess.row.name)


def score(guesses: Iterable[Guess], *, times: bool = True) -> dict[str, Any]:
    """The keys of the report. Regret is that of the first choice that ran; a choice that did not is infeasible."""
    groups: dict[tuple[str, ...], list[Guess]] = defaultdict(list)
    for guess in guesses:
        groups[guess.row.group].append(guess)
    judged = [_judge(group) for group in groups.values() if any(guess.row.ran for guess in group)]
    everything = [guess for group in groups.values() for guess in group]
    return {
        "groups": len(judged),
        "median_regret": _rounded([found.regret for found in judged], 50),
        "p90_regret": _rounded([found.regret for found in judged], 90),
        "share_within_10pct_strict": round(mean(found.first_ran and found.regret <= NEAR for found in judged), 4),
        "kendall_tau_median": round(median(found.tau for found in judged), 4),
        "mape_latency_within_2x": _mean([error for found in judged for error in found.errors]) if times else None,
        "median_ape_within_2x": _rounded([error for found in judged for error in found.errors], 50) if times else None,
        "mape_memory": _mean(
            [abs(g.peak_bytes / g.row.peak_bytes - 1) for g in everything if g.peak_bytes and g.row.peak_bytes]
        ),
        "infeasible_choices": sum(not found.first_ran for found in judged),
        "oom_accuracy": _mean([float(g.fits == g.row.ran) for g in everything]) if _some_failed(everything) else None,
    }


@dataclass(frozen=True, slots=True)
class _Judged:
    regret: float
    first_ran: bool
    tau: float
    errors: list[float]


def _judge(group: Sequence[Guess]) -> _Judged:
    ran = [(guess, guess.row.seconds) for guess in group if guess.row.seconds is not None]
    best = min(seconds for _, seconds in ran)
    order = sorted(group, key=preference)
    chosen = next(guess.row.seconds for guess in order if guess.row.seconds is not None)
    tau = kendalltau([guess.seconds for guess, _ in ran], [seconds for _, seconds in ran])[0]
    errors = [abs(guess.seconds / seconds - 1) for guess, seconds in ran if seconds <= CLOSE * best]
    return _Judged(chosen / best - 1, order[0].row.ran, float(np.nan_to_num(tau)), errors)


def _some_failed(guesses: Sequence[Guess]) -> bool:
    return any(not guess.row.ran for guess in guesses)


def _mean(values: Sequence[float]) -> float | None:
    return round(mean(values), 4) if values else None


def _rounded(values: Sequence[float], percentile: float) -> float | None:
    return round(float(np.percentile(values, percentile)), 4) if values else None
