"""Response lengths of a simulated run: the mean from a curve, the longest from the mean by the tail that was measured.

((step, mean), ...) + tail -> ResponseCurve -> Lengths at a step
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from statistics import NormalDist

from nereus.errors import UserError

TAIL = 0.55
"""Standard deviation of the log of response lengths within a step.

Source: the longest over the mean of 32, 128, 512 and 2,048 responses drawn from the Azure LLM trace of 2023
(conversations) is 2.6, 3.2, 4.0 and 4.6; in the verl run SofT-GRPO 1.5B (512 responses, steps in which none was cut off)
the median is 4.2. A log-normal with this spread gives 2.4, 3.2, 4.2 and 5.3. Runs differ: a Llama-3.2-3B run has 9.5, a
logic run 2.2."""

GRID = 1 / 256
"""Step of the logarithmic grid that lengths are rounded to, 0.4 %: a hundredth of what a response length varies by."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Responses of one RL step, in tokens."""

    mean: float
    longest: float

    @property
    def cell(self) -> tuple[int, int]:
        """Its place on the grid: steps of nearly equal lengths are worked out once."""
        return round(log(self.mean) / GRID), round(log(self.longest) / GRID)

    @property
    def rounded(self) -> Lengths:
        """The lengths of its cell."""
        mean, longest = self.cell
        return Lengths(exp(mean * GRID), exp(longest * GRID))


@lru_cache(maxsize=64)
def longest_over_mean(samples: int, tail: float = TAIL) -> float:
    """The longest of so many log-normal responses over their mean: at the quantile that one of them is expected above."""
    return max(exp(tail * NormalDist().inv_cdf(1 - 1 / (samples + 1)) - tail**2 / 2), 1.0)


@dataclass(frozen=True, slots=True)
class ResponseCurve:
    """Mean lengths by step, straight lines between them, constant before the first and after the last."""

    points: tuple[tuple[int, float], ...]
    """(step, mean response in tokens), steps ascending; see nereus/spec/lengths.py."""
    samples: int
    """Responses of one step."""
    most: float | None = None
    """Where responses are cut off, in tokens."""
    tail: float = TAIL

    def __post_init__(self) -> None:
        if not self.points:
            raise UserError("response lengths: there is no point; a curve needs at least one step with a mean length")
        if self.samples < 1:
            raise UserError(f"samples of a step: {self.samples} is not allowed; it must be 1 or more")

    def mean(self, step: float) -> float:
        """Mean response of a step."""
        place = bisect_right(self.points, step, key=lambda point: point[0])
        if place in (0, len(self.points)):
            mean = self.points[max(place - 1, 0)][1]
        else:
            (before, low), (after, high) = self.points[place - 1 : place + 1]
            mean = low + (high - low) * (step - before) / (after - before)
        return mean if self.most is None else min(mean, self.most)

    def at(self, step: float) -> Lengths:
        """Lengths of a step."""
        mean = self.mean(step)
        longest = mean * longest_over_mean(self.samples, self.tail)
        return Lengths(mean, longest if self.most is None else min(longest, self.most))
