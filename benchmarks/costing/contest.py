"""Who predicts: the cost model, calibrated on some rows and judged on others, and the rule of least model parallelism."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.costing.measured import Row
from benchmarks.costing.score import CLOSE, Guess
from nereus.cost.accelerator import AcceleratorModel, Measured
from nereus.cost.efficiency import Efficiencies


def calibrated(kind: str, rows: Sequence[Row] = ()) -> AcceleratorModel:
    """The cost model after these rows. It starts from conservative guesses, never from figures shipped for the kind.

    A plan that took more than twice the best of its group counts less: nobody would have run it long.
    """
    measured = [(row, row.seconds) for row in rows if row.seconds is not None]
    best: dict[tuple[str, ...], float] = {}
    for row, seconds in measured:
        best[row.group] = min(seconds, best.get(row.group, seconds))
    model = AcceleratorModel(Efficiencies(kind))
    if not measured:
        return model
    return model.learn(
        [
            Measured(row.run, row.model, seconds, row.peak_bytes, row.rank, min(1.0, CLOSE * best[row.group] / seconds))
            for row, seconds in measured
        ]
    )


def guess(model: AcceleratorModel, row: Row) -> Guess:
    """What the model says of a configuration."""
    found = model.training(row.run, row.model)
    reported = model.reported_peak(row.run, row.model, row.rank)
    return Guess(row, found.seconds, found.fits, reported, found.expected_s)


def least_model_parallelism(model: AcceleratorModel, row: Row) -> Guess:
    """The rule of thumb: of what fits, the fewest ranks per replica, TP before PP, then the largest micro-batch."""
    found, run = guess(model, row), row.run
    order = (run.tp * run.pp) * 1e6 + run.pp * 1e3 - run.micro_batch
    return Guess(row, order, found.fits, found.peak_bytes)
