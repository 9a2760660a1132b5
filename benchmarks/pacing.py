"""Devices of a declared speed on the wall clock: tokens per second of training at one, two, four and eight replicas.

    python -m benchmarks.pacing [--quick] [--data DIR] [--json]

The real job on a private Ray cluster, as `tests/actors/paced.py` makes it. All degrees are of one run, whose figure is
that of its quickest warm step; what is told is the median over runs. `lateness` says whether the
host gave the devices their share.
"""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.actors.jobs import TRAINING, Run
from tests.actors.paced import DEGREES, RESPONSE_TOKENS, run_paced, warm_steps

RUNS, QUICK_RUNS = 3, 1


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One run.")] = False,
    data: Annotated[Path | None, typer.Option(help="Not used: the rollouts are made, not read.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Measure whether more paced devices really are faster, on fewer cores than there are devices."""
    del data
    runs = []
    for _ in range(QUICK_RUNS if quick else RUNS):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run_paced(Path(folder)))
    rates = {dp: median(tokens_per_second(found, dp) for found in runs) for dp in DEGREES}
    figures = {
        "tokens_per_second": {str(dp): rate for dp, rate in rates.items()},
        "gain_of_doubling": {f"{less}-{more}": rates[more] / rates[less] for less, more in pairwise(DEGREES)},
        "lateness": median(found.summary.lateness for found in runs),
        "runs": len(runs),
    }
    if as_json:
        typer.echo(json.dumps(figures))
        return
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)


def tokens_per_second(run: Run, dp: int) -> float:
    """Response tokens that training took in per second of the quickest warm step of this degree."""
    seconds = min(step.stage_s[TRAINING] for step in warm_steps(run, dp))
    return run.job.global_batch * RESPONSE_TOKENS / seconds


if __name__ == "__main__":
    typer.run(main)
