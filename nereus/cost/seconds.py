"""Amounts into seconds: one number per operation class, over many workloads at once, so that a fit can use the same rule.

slot     = max over kinds of pipeline rank of softmax(device, host)  + sends
seconds  = repeats x (sum over phases of slots x slot + what is left of the hidden part + serial)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nereus.cost.operations import OpClass
from nereus.cost.volume import Workload

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stacked:
    """Workloads as arrays: N workloads, P phases, K kinds of rank, one axis of operation classes."""

    slots: Vector
    """N, P"""
    device: Vector
    """N, P, K, classes"""
    host: Vector
    """N, P, K, classes"""
    between: Vector
    """N, P, classes"""
    serial: Vector
    """N, classes"""
    hidden: Vector
    """N, classes"""
    hides: Vector
    """N"""
    repeats: Vector
    """N"""
    sharpness: Vector
    """N"""

    occurrences: NDArray[np.int64]
    """classes: the number of workloads in which each occurs"""

    @property
    def used(self) -> NDArray[np.bool_]:
        """classes: which occur at all"""
        found: NDArray[np.bool_] = self.occurrences > 0
        return found


def stack(workloads: Sequence[Workload]) -> Stacked:
    """Workloads side by side; missing phases and kinds of rank are empty."""
    phases = max(1, *(len(work.phases) for work in workloads))
    kinds = max((len(phase.device) for work in workloads for phase in work.phases), default=1)
    shape = (len(workloads), phases, kinds, len(OpClass))
    device, host, between = np.zeros(shape), np.zeros(shape), np.zeros((*shape[:2], len(OpClass)))
    slots = np.zeros(shape[:2])
    for n, work in enumerate(workloads):
        for p, phase in enumerate(work.phases):
            slots[n, p] = phase.slots
            between[n, p] = phase.between
            for k, (on_device, on_host) in enumerate(zip(phase.device, phase.host, strict=True)):
                device[n, p, k], host[n, p, k] = on_device, on_host
    serial, hidden = np.array([work.serial for work in workloads]), np.array([work.hidden for work in workloads])
    found = (device + host).sum(axis=(1, 2)) + between.sum(axis=1) + serial + hidden
    return Stacked(
        slots=slots,
        device=device,
        host=host,
        between=between,
        serial=serial,
        hidden=hidden,
        hides=np.array([work.hides for work in workloads]),
        repeats=np.array([work.repeats for work in workloads]),
        sharpness=np.array([work.sharpness for work in workloads]),
        occurrences=(found > 0).sum(axis=0),
    )


def seconds(stacked: Stacked, inverse: Vector) -> Vector:
    """Seconds of each workload (N); `inverse` is one over the efficiency of each class. Several rows of it (rows, classes)
    give several rows of seconds (rows, N)."""
    device, host = _summed(stacked.device, inverse), _summed(stacked.host, inverse)
    ranks = _joined(device, host, stacked.sharpness[:, None, None]).max(axis=-1)
    phases = stacked.slots * (ranks + _summed(stacked.between, inverse))
    left = np.maximum(_summed(stacked.hidden, inverse) - stacked.hides * ranks[..., 0], 0.0)
    found: Vector = stacked.repeats * (phases.sum(axis=-1) + left + _summed(stacked.serial, inverse))
    return found


def _summed(amounts: Vector, inverse: Vector) -> Vector:
    """Seconds of amounts (..., classes), for each row of inverse efficiencies."""
    found: Vector = amounts @ inverse if inverse.ndim == 1 else np.tensordot(inverse, amounts, axes=(-1, -1))
    return found


def seconds_of(work: Workload, inverse: Vector) -> float:
    """Seconds of one workload; the same rule as for many, without stacking them."""
    taken, first = 0.0, 0.0
    for number, phase in enumerate(work.phases):
        device, host = np.array(phase.device) @ inverse, np.array(phase.host) @ inverse
        slot = float(_joined(device, host, work.sharpness).max())
        first = first if number else slot
        taken += phase.slots * (slot + float(phase.between @ inverse))
    left = max(float(work.hidden @ inverse) - work.hides * first, 0.0)
    return work.repeats * (taken + left + float(work.serial @ inverse))


def _joined(device: Vector, host: Vector, sharpness: Vector | float) -> Vector:
    """A smooth maximum that is exact where one of the two is zero; the sum where the sharpness is 1."""
    larger = np.maximum(device, host)
    ratio = np.minimum(device, host) / np.where(larger > 0, larger, 1.0)
    joined: Vector = larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)
    return joined
