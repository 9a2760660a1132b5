"""Who predicts: the cost model, calibrated on some rows and judged on others, and the rule of least model parallelism."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.costing.measured import Row
from benchmarks.costing.score import Guess
from nereus.cost.components import MemoryScales, training_components
from nereus.cost.efficiency import Efficiencies
from nereus.cost.training import training_workload

HEADROOM = 0.9
"""Of a device's memory: the paper's 10 %."""

PRESSURE_MEASURED, PRESSURE_PREDICTED = 0.85, 0.95
"""Shares of a device's memory over which an allocator that returns memory is taken to stall: what runs report, and what is
predicted, which must be over the first by more than its own error."""


class Model:
    """The cost model, after the rows it was calibrated on."""

    def __init__(self, kind: str, rows: Sequence[Row] = ()) -> None:
        self.efficiencies, self.scales = Efficiencies(kind), MemoryScales()
        self.learn(rows)

    def learn(self, rows: Sequence[Row], *, probes: bool = False) -> None:
        """Calibrate on these rows; a probe counts as much as it says, beside a prior that may have drifted."""
        measured = [row for row in rows if row.seconds is not None]
        peaks = [row for row in measured if row.peak_bytes is not None]
        if peaks:
            components = [training_components(row.run, row.model) for row in peaks]
            self.scales = self.scales.learn(components, [row.peak_bytes or 0.0 for row in peaks])
        best = {row.group: min(r.seconds or 0.0 for r in measured if r.group == row.group) for row in measured}
        works = [
            training_workload(r.run, r.model, near_capacity=(r.peak_bytes or 0.0) > PRESSURE_MEASURED * _capacity(r))
            for r in measured
        ]
        times = [row.seconds or 0.0 for row in measured]
        weights = [min(1.0, 2 * best[row.group] / time) for row, time in zip(measured, times, strict=True)]
        known = self.efficiencies.drifting(4.0) if probes else self.efficiencies
        self.efficiencies = known.learn(works, times, None if probes else weights)

    def guess(self, row: Row) -> Guess:
        """What the model says of a configuration."""
        peak = self.scales.peak_bytes(training_components(row.run, row.model))
        work = training_workload(row.run, row.model, near_capacity=peak > PRESSURE_PREDICTED * _capacity(row))
        return Guess(row, self.efficiencies.seconds(work), peak <= HEADROOM * _capacity(row), peak)


def least_model_parallelism(model: Model, row: Row) -> Guess:
    """The rule of thumb: of what fits, the fewest ranks per replica, TP before PP, then the largest micro-batch."""
    guess, run = model.guess(row), row.run
    order = (run.tp * run.pp) * 1e6 + run.pp * 1e3 - run.micro_batch
    return Guess(row, order, guess.fits, guess.peak_bytes)


def _capacity(row: Row) -> int:
    return row.run.hardware.accelerator.memory_bytes
