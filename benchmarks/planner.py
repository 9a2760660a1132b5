"""The plan search against brute force and CP-SAT, and how long it takes for up to 16,384 devices.

    python -m benchmarks.planner [--quick] [--data DIR] [--json]

The table of costs is the truth here: what is judged is the search, not the cost model. CP-SAT (`pip install ortools`, extra
`bench`) solves mid-sized problems within a time limit; without it `gap_vs_cpsat` is null, and `reasons` says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.planning import comparing, cpsat, report, timing


def main(
    quick: Annotated[bool, typer.Option("--quick", help="60 small instances, two larger ones, three repeats.")] = False,
    data: Annotated[Path | None, typer.Option(help="Not used: the problems are made, not read.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Measure how exact and how fast the plan search is."""
    del data
    console = Console(stderr=as_json)

    def announce(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    timed = timing.run(repeats=3 if quick else 7, announce=announce)
    compared = comparing.run(60 if quick else 240, announce)
    gaps = cpsat.run(cpsat.QUICK if quick else cpsat.CASES, limit_s=5.0 if quick else 60.0, announce=announce)
    found = report.summary(timed, compared, gaps)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        report.show(found, console)


if __name__ == "__main__":
    typer.run(main)
