"""What a measurement is worth before it is taken: how much faster the plan is that one would choose after it.

    log seconds of items: mean, covariance        items = (model-stage, layout); correlated through operation classes
    outcome of a probe -> the other items move with it -> another plan may be the fastest
    value = fastest plan on average as of now  -  average over outcomes of the fastest plan then      never below zero

This is the knowledge gradient for correlated beliefs (Frazier, Powell and Dayanik 2009). Probes are added one by one, each
valued beside those before it. Outcomes are a fixed set of points, so that the answer is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from nereus.cost.fit import NOISE

Floats = npt.NDArray[np.float64]

LAYOUT_ERROR = 0.06
"""Relative error of a predicted layout that no class explains and only running it tells: what is left after the classes were
fitted, 5 to 7 % on the published sweep (docs/benchmarks.md). With 0 a probe would teach nothing about itself."""

POINTS = 256
"""Outcomes that a value is averaged over, each with its mirror image: it is then good to a few percent of itself."""

LEAST = 1e-5
"""Share of a step below which a probe is worth nothing: rounding."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What is known of the seconds of items."""

    log_seconds: Floats
    """items"""
    covariance: Floats
    """items, items: of the logs"""

    @classmethod
    def of(cls, seconds: npt.ArrayLike, sensitivity: npt.ArrayLike, own_error: npt.ArrayLike = LAYOUT_ERROR) -> Belief:
        """Predicted seconds (items), how much their logs rise with each unknown by its spread (items, unknowns), and the
        error of each that is its own (items; 0 for what was run)."""
        moves = np.asarray(sensitivity, np.float64)
        own = np.broadcast_to(np.asarray(own_error, np.float64), len(moves))
        return cls(np.log(np.asarray(seconds, np.float64)), moves @ moves.T + np.diag(own**2))

    def outcomes(self, measured: Sequence[int]) -> Floats:
        """What all items would be predicted to take after these were measured: (items, points) in seconds."""
        own = self.covariance[np.ix_(measured, measured)] + NOISE**2 * np.eye(len(measured))
        factor = np.linalg.cholesky(own)
        shift = np.linalg.solve(factor, self.covariance[list(measured)]).T @ normal_points(len(measured)).T
        found: Floats = np.exp(self.log_seconds[:, None] + shift)
        return found


Steps = Callable[[Floats], Floats]
"""Seconds of the items (items, points) -> L_step of each plan one may choose (plans, points)."""


def value(belief: Belief, measured: Sequence[int], steps: Steps) -> float:
    """Seconds per step that measuring these items is expected to save."""
    after = steps(belief.outcomes(measured))
    return float(after.mean(axis=1).min() - after.min(axis=0).mean())


def choose(belief: Belief, probes: Sequence[Sequence[int]], steps: Steps, most: int) -> list[tuple[int, float]]:
    """The probes to run, the most valuable first, each with the seconds per step that it adds to those before it.

    `probes` has the items that each one measures; of equal ones the first is taken. Fewer than `most` where no other
    would change the choice.
    """
    least = LEAST * float(steps(np.exp(belief.log_seconds)[:, None]).min())
    chosen: list[tuple[int, float]] = []
    measured: list[int] = []
    known = 0.0
    while len(chosen) < most:
        left = [probe for probe, items in enumerate(probes) if not set(items) <= set(measured)]
        gains = {probe: value(belief, _union(measured, probes[probe]), steps) - known for probe in left}
        best = max(gains, key=lambda probe: (gains[probe], -probe), default=None)
        if best is None or gains[best] <= least:
            return chosen
        chosen.append((best, gains[best]))
        measured = _union(measured, probes[best])
        known += gains[best]
    return chosen


def _union(measured: Sequence[int], items: Sequence[int]) -> list[int]:
    return list(dict.fromkeys([*measured, *items]))


@cache
def normal_points(dimensions: int) -> Floats:
    """Standard normal points that cover space evenly, (2 x POINTS, dimensions): Roberts' R sequence and its mirror image."""
    ratio = 2.0
    for _ in range(64):  # the root of x^(d + 1) = x + 1
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    steps = ratio ** -np.arange(1.0, dimensions + 1)
    uniform = (0.5 + np.outer(np.arange(1, POINTS + 1), steps)) % 1.0
    normal = np.vectorize(NormalDist().inv_cdf)(np.clip(uniform, 1e-9, 1 - 1e-9))
    return np.concatenate([normal, -normal])
