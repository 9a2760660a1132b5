"""What transitions of a real job were predicted to take, and what they took.

    python -m benchmarks.transition_estimate [--quick] [--data DIR] [--json]

Runs examples/larger.yaml on a private Ray cluster of this machine: eight emulated devices, eighteen scripted transitions.
Those that move less than 50 MB are shown and not judged. The rates of links are declared before the first transition and
learnt from each, so the first three are told apart. Other work on the machine's cores makes equal transitions unequal: the
load before and after is part of the result.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from nereus.cli.display import transition_table
from nereus.runtime.summary import l_tran_error
from nereus.spec.loading import load_job

JOB = Path(__file__).parent.parent / "examples" / "larger.yaml"

QUICK_STEPS = 18
"""RL steps with the first eight transitions, of which six move 50 MB or more."""

LEAST_BYTES = 50e6
"""Moved by a transition that is judged: below, what is measured is mostly the calls."""


def main(
    quick: Annotated[bool, typer.Option("--quick", help="The first eight transitions.")] = False,
    data: Annotated[Path | None, typer.Option(help="Not used: the job starts from random weights.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Measure how well the cost of a transition is estimated."""
    from actors.launch import launched

    del data
    console = Console(stderr=as_json)
    job, before = load_job(JOB), os.getloadavg()[0]
    job = job.with_steps(QUICK_STEPS) if quick else job
    with tempfile.TemporaryDirectory() as folder, launched(job, Path(folder) / job.name) as run:
        for _ in run.watch():
            pass
        summary = run.summary()
    for line in transition_table(summary):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    found = judged(summary.transitions)
    found |= {"lateness": summary.lateness, "load": {"before": before, "after": os.getloadavg()[0]}}
    if as_json:
        typer.echo(json.dumps(found))
    else:
        console.print(f"of at least {LEAST_BYTES / 1e6:.0f} MB: {found}", highlight=False)


def judged(transitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Bytes and errors of the transitions that move enough."""
    chosen = [each for each in transitions if each["bytes_moved"] >= LEAST_BYTES]
    moved = [each["bytes_moved"] for each in chosen]
    errors = l_tran_error(chosen)
    return {
        "transitions": len(chosen),
        "moved_bytes": {"min": min(moved, default=None), "median": median(moved) if moved else None},
        "error": {"median_after_three": errors["after_three"], "all": errors["all"]},
        "each": [
            {key: each[key] for key in ("epoch", "bytes_moved", "l_tran_predicted_s", "seconds", "setup_s")}
            for each in chosen
        ],
    }


if __name__ == "__main__":
    typer.run(main)
