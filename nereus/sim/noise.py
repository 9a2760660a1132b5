"""Chance in the simulated world, without state: everything is a hash of (seed, what it is about, counter).

A step can be asked for in any order and gives the same again, so a replayed or resumed simulation meets the same world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from types import MappingProxyType
from zlib import crc32

_MASK, _ODD = 2**64 - 1, 0x9E3779B97F4A7C15

STEP_SPREAD = 0.02
"""Standard deviation of the log of a model-stage's seconds from step to step, at equal lengths.

Source: residuals of linear fits to generation, scoring and update times of seven verl runs (SofT-GRPO): 1.4 to 5.9 %, 2.2
% in the median. The paper's own steps keep within 2 %."""

SLOW_SPREAD = 0.01
"""Standard deviation of the part of it that lasts: the autocorrelation of those residuals is about 0.15 from 1 to 16
steps."""

SLOW_STEPS = 32
"""Steps over which the lasting part changes: the autocorrelation is gone at 64."""

STRAGGLER_SHARE = 0.005
"""Share of a worker's mini-batches that take over 1.3 times its median.

Source: four Alibaba jobs of ten workers: 0, 0.4, 1.1 and 6.8 %; the mean of the first three. In the last one workers of
several kinds are mixed."""

STRAGGLER_STEPS = 16
"""Steps that a straggler lasts: one or two rows of ten iterations in the median of those jobs."""

STRAGGLER_FACTOR = (1.45, 0.12)
"""Median of a straggler's factor, and standard deviation of its log: episodes there have 1.34 to 1.63 in the median of a
job, and 1.4 to 2.1 at the ninth decile."""


def uniform(seed: int, *counters: int) -> float:
    """A number in (0, 1) that belongs to the seed and the counters (splitmix64 over them)."""
    return ((_state(seed, counters) >> 12) + 0.5) / 2**52


def normal(seed: int, *counters: int) -> float:
    """A nearly normal number with mean 0 and standard deviation 1, within 3.5: the sum of four 16-bit parts of one hash."""
    state = _state(seed, counters)
    total = (state & 0xFFFF) + (state >> 16 & 0xFFFF) + (state >> 32 & 0xFFFF) + (state >> 48)
    return (total / 65535 - 2.0) * 3**0.5


def drawn(seed: int, name: str, spread: float) -> float:
    """A factor around 1 that belongs to a name in this world: exp(spread * normal)."""
    return exp(spread * normal(seed, crc32(name.encode())))


def _state(seed: int, counters: tuple[int, ...]) -> int:
    state = seed & _MASK
    for counter in counters:
        state = _mixed(state ^ (counter * _ODD & _MASK))
    return state


def _mixed(value: int) -> int:
    value = (value + _ODD) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


@dataclass(frozen=True, slots=True)
class StepNoise:
    """How the same work differs from step to step."""

    seed: int
    spread: float = STEP_SPREAD
    slow_spread: float = SLOW_SPREAD

    def factors(self, step: int, num_tasks: int) -> list[float]:
        """Of each task of a step, by its place in the composition: about 1."""
        block, inside = divmod(step, SLOW_STEPS)
        share = inside / SLOW_STEPS
        # Weights whose squares add up to 1, so that the lasting part has the same spread in every step.
        norm = self.slow_spread / (share**2 + (1 - share) ** 2) ** 0.5
        before, after = norm * (1 - share), norm * share
        lasting = zip(_slow(self.seed, block, num_tasks), _slow(self.seed, block + 1, num_tasks), strict=True)
        state, spread, found = _state(self.seed, (1, step)), 2 * self.spread / 65535, []
        for low, high in lasting:
            # One hash for the step, then Knuth's linear congruential steps: this runs millions of times.
            state = state * 0x5851F42D4C957F2D + 0x14057B7EF767814F & _MASK
            near = (state >> 16 & 0xFFFF) + (state >> 32 & 0xFFFF) + (state >> 48) - 98302.5
            found.append(exp(spread * near + before * low + after * high))
        return found


@lru_cache(maxsize=256)
def _slow(seed: int, block: int, num_tasks: int) -> tuple[float, ...]:
    return tuple(normal(seed, 2, block, task) for task in range(num_tasks))


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Devices that are slow for a while, for no reason that anyone declares."""

    seed: int
    share: float = STRAGGLER_SHARE

    def at(self, step: int, num_devices: int) -> Mapping[int, float]:
        """The devices that are slow in a step, and by how much; the same in all steps of a block of STRAGGLER_STEPS."""
        return _straggling(self, step // STRAGGLER_STEPS, num_devices)


@lru_cache(maxsize=256)
def _straggling(of: Stragglers, block: int, num_devices: int) -> Mapping[int, float]:
    slow = (device for device in range(num_devices) if uniform(of.seed, 3, device, block) < of.share)
    median, spread = STRAGGLER_FACTOR
    return MappingProxyType({device: max(median * exp(spread * normal(of.seed, 4, device, block)), 1.0) for device in slow})
