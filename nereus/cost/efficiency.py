"""Efficiencies: achieved over datasheet, one per operation class, with their uncertainty; conservative before they are seen.

Efficiencies --learn(workloads, seconds)--> Efficiencies          saved and loaded by hardware kind
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from nereus.cost.fit import Vector, fit
from nereus.cost.operations import COMPUTE, LINKS, MOST, OpClass
from nereus.cost.seconds import Stacked, seconds, seconds_of, stack
from nereus.cost.volume import Workload


class Efficiency(NamedTuple):
    """Of one class."""

    value: float
    spread: float
    """Standard deviation of its log: 0.5 means within a factor of 1.6, two times out of three."""
    observations: int = 0
    """Measured runs in which it occurred; 0 for what is still a guess."""

    @property
    def measured(self) -> bool:
        """Whether any measurement touched it."""
        return self.observations > 0


UNSEEN: Mapping[OpClass, Efficiency] = {
    OpClass.GEMM: Efficiency(0.5, 0.3),
    OpClass.GEMM_BYTES: Efficiency(0.7, 0.7),
    OpClass.ATTENTION: Efficiency(0.3, 0.7),
    OpClass.ELEMENTWISE: Efficiency(0.5, 0.7),
    OpClass.DISPATCH: Efficiency(0.15, 1.0),
    OpClass.DISPATCH_PIPELINED: Efficiency(0.2, 1.0),
    OpClass.TP_NODE: Efficiency(0.6, 0.7),
    OpClass.TP_NETWORK: Efficiency(0.4, 1.0),
    OpClass.TP_LATENCY_NODE: Efficiency(0.3, 1.0),
    OpClass.TP_LATENCY_NETWORK: Efficiency(0.2, 1.0),
    OpClass.SEND_NODE: Efficiency(0.5, 1.0),
    OpClass.SEND_NETWORK: Efficiency(0.5, 1.0),
    OpClass.REDUCE_NODE: Efficiency(0.5, 1.0),
    OpClass.REDUCE_NETWORK: Efficiency(0.35, 1.0),
    OpClass.SCATTER_NODE: Efficiency(0.5, 1.0),
    OpClass.SCATTER_NETWORK: Efficiency(0.35, 1.0),
    OpClass.EXPERTS_NODE: Efficiency(0.4, 1.0),
    OpClass.EXPERTS_NETWORK: Efficiency(0.25, 1.0),
    OpClass.OPTIMIZER: Efficiency(0.6, 0.7),
    OpClass.STEP: Efficiency(0.5, 1.0),
    OpClass.WEIGHTS: Efficiency(0.6, 0.5),
    OpClass.KV_READ: Efficiency(0.4, 0.7),
    OpClass.DECODE_DISPATCH: Efficiency(0.3, 1.0),
    OpClass.SEQUENCE: Efficiency(0.5, 1.0),
    OpClass.OFFLOAD: Efficiency(0.5, 0.7),
    OpClass.HOST: Efficiency(1.0, 0.5),
    OpClass.STALL: Efficiency(1.0, 0.5),
}
"""Before anything was measured: what ordinary kernels and collectives reach, never more than the datasheet. They are
conservative guesses, not measurements, and a report says so of every class that is still at them."""


SMALL = 1e-3
"""Relative change of a class by which a derivative is taken: its error is a millionth, far above rounding."""


@dataclass(frozen=True)
class Efficiencies:
    """The efficiencies of one hardware kind."""

    kind: str
    values: Mapping[OpClass, Efficiency] = field(default_factory=lambda: dict(UNSEEN))
    num_measured: int = 0
    source: str = "conservative guesses; nothing measured"
    """Where the figures come from."""
    common: float = 0.0
    """Spread of a factor that all computation shares: not 0 where the peak was timed instead of printed in a datasheet."""

    @cached_property
    def inverse(self) -> Vector:
        """One over each efficiency, in the order of `OpClass`."""
        found = np.array([1.0 / self.values[op].value for op in OpClass])
        found.setflags(write=False)
        return found

    @property
    def _spread(self) -> Vector:
        return np.array([self.values[op].spread for op in OpClass])

    def seconds(self, work: Workload) -> float:
        """Predicted seconds of a workload."""
        return seconds_of(work, self.inverse)

    def possible_seconds(self, stacked: Stacked, shifts: Vector) -> Vector:
        """Seconds (rows, workloads) where classes are slower by so many of their spreads (rows, classes), scaled so that on
        average over the rows each class takes what it takes now."""
        slower = np.exp(self._spread * shifts)
        return seconds(stacked, self.inverse * slower / slower.mean(axis=0))

    def sensitivity(self, work: Workload) -> Vector:
        """How much the log of that prediction rises where one class is slower by its spread, in the order of `OpClass`: half
        of what lies between slower and faster by it."""
        by_class, stacked = np.diag(self._spread), stack([work])
        slower, faster = (seconds(stacked, self.inverse * np.exp(logs))[:, 0] for logs in (by_class, -by_class))
        return np.log(slower / faster) / 2

    def uncertainty(self, work: Workload) -> float:
        """Relative standard deviation of that prediction, from the spreads of the classes it is made of."""
        return float(np.linalg.norm(self.sensitivity(work)))

    def learn(
        self, works: Sequence[Workload], measured: Sequence[float], weights: Sequence[float] | None = None
    ) -> Efficiencies:
        """These efficiencies after measurements; what was known before is the prior, classes that did not occur keep it."""
        if not works:
            return self
        stacked = stack(works)
        used = stacked.used
        prior = np.log(self.inverse)
        spread = self._spread

        def predict(factors: Vector) -> Vector:
            inverse = np.exp(prior)
            inverse[used] = factors
            return seconds(stacked, inverse)

        chosen = None if weights is None else np.asarray(weights, dtype=float)
        # A device may well be faster than what was timed; nothing is faster than its datasheet.
        least = np.array([-np.inf if self.common else -np.log(MOST.get(op, np.inf)) for op in OpClass])
        common = np.array([self.common * (op in COMPUTE) for op in OpClass])
        times = np.asarray(measured, dtype=float)
        found = fit(predict, times, prior[used], spread[used], weights=chosen, least=least[used], common=common[used])
        values = dict(self.values)
        for op, log, width in zip((op for op in OpClass if used[op.position]), found.log, found.spread, strict=True):
            seen = self.values[op].observations + int(stacked.occurrences[op.position])
            values[op] = Efficiency(float(np.exp(-log)), float(width), seen)
        count = self.num_measured + len(works)
        return replace(self, values=values, num_measured=count, source=f"{count} measured runs")

    def achieved(self, of: str) -> dict[str, float]:
        """What was measured, by "compute/..." or "communication/...": `of` is whom it was measured on."""
        return {
            _name(op, of): known.value
            for op, known in self.values.items()
            if known.measured and (op in COMPUTE or op in LINKS)
        }

    def assumed(self, of: str) -> dict[str, float]:
        """What plans go by, measured or not, by the same names."""
        return {_name(op, of): known.value for op, known in self.values.items() if op in COMPUTE or op in LINKS}

    def spent(self, of: str, work: Workload) -> dict[str, float]:
        """Seconds of a workload by class, by the same names; they add up to those of the workload but for classes that are
        neither computation nor links.

        Seconds are homogeneous in what the classes take, so each class has its derivative's part (Euler): one that is hidden
        behind another has none.
        """
        logs = np.diag(np.full(len(OpClass), SMALL))
        slower, faster = (seconds(stack([work]), self.inverse * np.exp(by))[:, 0] for by in (logs, -logs))
        parts = (slower - faster) / (2 * SMALL)
        return {
            _name(op, of): float(part)
            for op, part in zip(OpClass, parts, strict=True)
            if part > 0 and (op in COMPUTE or op in LINKS)
        }

    def drifting(self, factor: float, ceiling: Mapping[OpClass, Efficiency] = UNSEEN) -> Efficiencies:
        """The same with spreads widened by a factor, up to those of unseen classes: what time takes from a measurement."""
        values = {
            op: known._replace(spread=min(known.spread * factor, ceiling[op].spread)) for op, known in self.values.items()
        }
        return replace(self, values=values)

    def as_json(self) -> dict[str, Any]:
        """Plain data to save."""
        return {
            "kind": self.kind,
            "source": self.source,
            "num_measured": self.num_measured,
            "common": self.common,
            "classes": {op.value: known._asdict() for op, known in self.values.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Efficiencies:
        """What `as_json` gave; classes that are newer than the file are unseen."""
        saved = {
            OpClass(name): Efficiency(float(one["value"]), float(one["spread"]), int(one["observations"]))
            for name, one in data["classes"].items()
        }
        common = float(data.get("common", 0.0))
        return cls(str(data["kind"]), {**UNSEEN, **saved}, int(data["num_measured"]), str(data["source"]), common)


def _name(op: OpClass, of: str) -> str:
    return f"{'compute' if op in COMPUTE else 'communication'}/{of}/{op.value}"
