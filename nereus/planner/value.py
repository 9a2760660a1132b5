"""What a measurement is worth before it is taken: how much faster the plan is that one would choose after it.

    unknowns (efficiencies by class) -> seconds of items (model-stage, layout) -> L_step of plans
    outcome of a probe -> unknowns move -> the other items with them -> another plan may be the fastest
    value = fastest plan as of now  -  average over outcomes of the fastest plan then                  never below zero

This is the knowledge gradient for correlated beliefs (Frazier, Powell and Dayanik 2009), with seconds that are computed
anew at each outcome: a message that is a part of a stage cannot make it faster than the rest. Probes are added one by one,
each valued beside those before it. Outcomes are a fixed set of points, so that the answer is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from nereus.cost.fit import NOISE

Floats = NDArray[np.float64]

LAYOUT_ERROR = 0.06
"""Relative error of a predicted layout that no class explains and only running it tells: what is left after the classes were
fitted, 5 to 7 % on the published sweep (docs/benchmarks.md). With 0 a probe would teach nothing about itself."""

POINTS = 128
"""Outcomes that a value is averaged over, each with its mirror image: it is then good to a few percent of itself."""

LEAST = 1e-5
"""Share of a step below which a probe is worth nothing: rounding."""


Predict = Callable[[Floats], Floats]
"""Unknowns in units of their spreads, 0 as of now and above it slower, (points, unknowns) -> seconds (points, items). The
seconds that an unknown has a part in should be, on average over the points, what they are now."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What is known of the seconds of items."""

    seconds: Floats
    """items: predicted, the mean of what they may turn out to be"""
    moves: Floats
    """items, unknowns: how much the log of the seconds rises where an unknown is slower by its spread"""
    own_error: Floats
    """items: relative error that no unknown explains; 0 for what was run"""
    predict: Predict

    def outcomes(self, measured: Sequence[int]) -> Floats:
        """What all items would be predicted to take after these were measured: (items, points) in seconds.

        On average that is what they are predicted to take now.
        """
        chosen = list(measured)
        moves, own = self.moves[chosen], self.own_error[chosen] ** 2
        noisy = moves @ moves.T + np.diag(own + NOISE**2)
        surprise = np.linalg.solve(np.linalg.cholesky(noisy).T, normal_points(len(chosen)).T)
        found = self.predict(surprise.T @ moves).T
        found[chosen] *= np.exp(own[:, None] * surprise)
        found *= (self.seconds / found.mean(axis=1))[:, None]
        return found

    def spread(self, item: int) -> float:
        """Standard deviation of the log of an item's seconds."""
        return float(np.hypot(np.linalg.norm(self.moves[item]), self.own_error[item]))


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
    least = LEAST * float(steps(belief.seconds[:, None]).min())
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
    """Points that cover a standard normal evenly, (2 x POINTS, dimensions): multiples of the square roots of primes modulo 1
    (Richtmyer 1951) with their mirror image, scaled so that the second moments are exact, too.

    More dimensions leave the first ones as they are, so that what adds nothing to a value adds nothing.
    """
    primes = [number for number in range(2, 20 * dimensions + 2) if all(number % other for other in range(2, number))]
    uniform = (0.5 + np.outer(np.arange(1, POINTS + 1), np.sqrt(primes[:dimensions]))) % 1.0
    normal = np.vectorize(NormalDist().inv_cdf)(np.clip(uniform, 1e-9, 1 - 1e-9))
    normal = normal @ np.linalg.inv(np.linalg.cholesky(normal.T @ normal / POINTS)).T
    return np.concatenate([normal, -normal])
