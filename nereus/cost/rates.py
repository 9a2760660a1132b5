"""How fast a device and its links really are: what turns work into seconds.

    seconds of an op class = floor * calls + flops / (peak * efficiency)

Peaks come from the inventory, floors and efficiencies from measured stage times, one pair per operation class, conservative
before they are seen (paper, section 4.2). Messages cost a latency by group size plus bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import nnls

from nereus.cost.work import OpClass, Work

UNSEEN_EFFICIENCY = 0.2
"""Of the peak, for a class that was never measured: below what any measured class reached, so unseen is never free."""

UNSEEN_FLOOR_S = 2e-3
"""Seconds per call for a class that was never measured, on a device of 0.15 of a core: a layer's forward dispatches 25
operations of about 10 us of CPU each. Faster devices are corrected by the first measurements."""

PRIOR_WEIGHT = 0.05
"""How strongly the prior holds against one measurement: enough to divide the time of a single plan, no more."""

TOLERANCES = (3.0, 1.5, 1.25, 1.25)
"""How far from what is expected a measurement is taken at its word, pass by pass: one that is ten times off (a step that
was disturbed, a clock that was read wrongly) must not move the fit, and a new level must not be taken for that."""

DISBELIEF = 0.05
"""Weight of a measurement beyond the first tolerance, as long as most are within it."""

WINDOW = 24
"""Measurements of a class that are remembered: a drift is followed within a few steps."""

REDUCE_LATENCY_S: Mapping[int, float] = {1: 0.0, 2: 7e-4, 4: 5e-3, 8: 2e-2}
"""Seconds of a small all-reduce over Gloo by group size, as measured on two cores; sizes between are interpolated."""

BANDWIDTH_BYTES_S = 1.0e9
"""Bytes per second between two local processes over Gloo: half of what was measured, since pairs share the cores."""


@dataclass(frozen=True, slots=True)
class ClassRate:
    """The rate of one operation class."""

    floor_s: float = UNSEEN_FLOOR_S
    efficiency: float = UNSEEN_EFFICIENCY
    num_measured: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """A stage's work, and the seconds that it took."""

    work: Work
    group_sizes: tuple[int, int]
    """tp and dp of the plan that it ran on."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of one device kind in one job."""

    peak_flops: float
    """FLOP/s of one device, its declared speed included."""
    classes: Mapping[OpClass, ClassRate] = field(default_factory=dict)
    measured: tuple[Measurement, ...] = ()

    def rate(self, op_class: OpClass) -> ClassRate:
        """The rate of a class; conservative before it was seen."""
        return self.classes.get(op_class, ClassRate())

    def seconds(self, work: Work, tp: int, dp: int) -> float:
        """Predicted seconds of some work under TP groups of `tp` and DP groups of `dp`."""
        rate = self.rate(work.op_class)
        compute = rate.floor_s * work.calls + work.flops / (self.peak_flops * rate.efficiency)
        return compute + message_seconds(work, tp, dp)

    def learn(self, measurements: tuple[Measurement, ...]) -> Rates:
        """These rates after more measurements: each class is fitted anew on its window."""
        measured = (*self.measured, *measurements)
        kept: list[Measurement] = []
        classes: dict[OpClass, ClassRate] = {}
        for op_class in OpClass:
            window = [m for m in measured if m.work.op_class is op_class][-WINDOW:]
            kept.extend(window)
            if window:
                classes[op_class] = _fit(window, self.peak_flops)
        return replace(self, classes=classes, measured=tuple(kept))


def message_seconds(work: Work, tp: int, dp: int) -> float:
    """Seconds of the messages on the way."""
    reduce = work.reduces * (reduce_latency_s(tp) + _ring(tp) * work.reduce_bytes / BANDWIDTH_BYTES_S)
    hop = work.hops * (reduce_latency_s(2) / 2 + work.hop_bytes / BANDWIDTH_BYTES_S)
    gradient = work.gradient_reduces * (reduce_latency_s(dp) + _ring(dp) * work.gradient_bytes / BANDWIDTH_BYTES_S)
    return reduce + hop + gradient


def reduce_latency_s(size: int) -> float:
    """Seconds of an all-reduce of a few bytes over `size` members."""
    sizes = sorted(REDUCE_LATENCY_S)
    if size > sizes[-1]:
        return REDUCE_LATENCY_S[sizes[-1]] * size / sizes[-1]
    return float(np.interp(size, sizes, [REDUCE_LATENCY_S[s] for s in sizes]))


def _ring(size: int) -> float:
    """Times that each byte crosses a link in a ring all-reduce."""
    return 2.0 * (size - 1) / size


def _fit(window: list[Measurement], peak_flops: float) -> ClassRate:
    """Floor and efficiency by non-negative least squares on relative errors, held loosely to the prior.

    The prior is a measurement of its own kind: it says that floor and 1 / efficiency stay in proportion to the unseen
    ones, scaled so that the mean measurement is met; so one plan alone does not decide how time divides between the two.
    """
    rows = np.array([[m.work.calls, m.work.flops / peak_flops] for m in window])
    seconds = np.array([max(m.seconds - message_seconds(m.work, *m.group_sizes), 0.05 * m.seconds) for m in window])
    prior = np.array([UNSEEN_FLOOR_S, 1.0 / UNSEEN_EFFICIENCY])
    prior *= float(np.median(seconds / (rows @ prior)))
    rate = prior
    for tolerance in TOLERANCES:
        expected = rows @ rate
        heard = np.clip(seconds, expected / tolerance, expected * tolerance)
        believed = np.abs(np.log(seconds / expected)) <= np.log(TOLERANCES[0])
        weight = np.where(believed | (believed.sum() < len(window) / 2), 1.0, DISBELIEF)
        weighted = np.vstack([rows / heard[:, None] * weight[:, None], np.diag(PRIOR_WEIGHT / prior)])
        wanted = np.concatenate([weight, np.full(2, PRIOR_WEIGHT)])
        rate, _ = nnls(weighted, wanted)
    floor_s, inverse = rate
    return ClassRate(float(floor_s), 1.0 / max(float(inverse), 1e-9), len(window))
