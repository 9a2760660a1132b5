"""A switch that training_sweep_h100 hides: whether what sequence parallelism gathers is kept for the backward.

The sweep's generator (nanotron, scripts/scaling_benchmarks.py) came back to pipelines of one degree or another with later
code, so the switch is taken to be the same for all rows of a pipeline degree. It is read off the peaks of the rows that a
contestant may see, never of those that it is judged on; with nothing seen it is kept, which takes more memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

from benchmarks.costing.measured import Row
from nereus.cost.accelerator import AcceleratorModel


def kept_by_degree(model: AcceleratorModel, seen: Sequence[Row]) -> dict[int, bool]:
    """By pipeline degree: whether the peaks that were seen are nearer to those of a run that keeps what it gathered."""
    errors: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in seen:
        if row.peak_bytes is None or row.run.tp == 1:
            continue
        for kept in (False, True):
            run = replace(row.run, keeps_gathered=kept)
            errors[run.pp][kept] += abs(log(model.reported_peak(run, row.model, row.rank) / row.peak_bytes))
    return {degree: kept < again for degree, (again, kept) in errors.items()}


def switched(rows: Sequence[Row], kept: Mapping[int, bool]) -> list[Row]:
    """The rows with the switch as it was found; degrees of which none was seen keep what they gathered."""
    return [replace(row, run=replace(row.run, keeps_gathered=kept.get(row.run.pp, True))) for row in rows]
