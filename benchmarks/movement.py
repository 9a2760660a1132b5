"""State movement against what others do: Nereus, PyTorch DCP, DeepSpeed UCP, Megatron-Core and raw Gloo, side by side.

    python -m benchmarks.movement [--quick] [--data DIR] [--json]

Four rank processes move one state (206 MB with Adam moments) between all pairs of layouts of up to four ranks.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from benchmarks.moving import match, report
from benchmarks.moving.cluster import Cluster
from benchmarks.moving.paper import CASES, plan_ms
from benchmarks.moving.shapes import QUICK, all_pairs

REPEATS, QUICK_REPEATS = 3, 1

PLAN_LIMIT_S, QUICK_PLAN_LIMIT_S = 120.0, 20.0
"""How long one planning on paper may take before it is given up and reported as not measured."""


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A dozen varied pairs, once each.")] = False,
    data: Annotated[Path | None, typer.Option(help="Not used: the state is made, not read.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Measure how fast, how lean and how exact state moves between parallel layouts."""
    del data
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(stderr=as_json)
    repeats, limit_s = (QUICK_REPEATS, QUICK_PLAN_LIMIT_S) if quick else (REPEATS, PLAN_LIMIT_S)
    plans = {name: plan_ms(name, repeats, limit_s) for name in CASES}
    with Cluster() as cluster:
        bouts = match.run(cluster, QUICK if quick else all_pairs(), repeats, lambda bout: _announce(console, bout))
        late = {name: f"not planned within {limit_s:.0f} s" for name, taken in plans.items() if taken is None}
        found = report.summary(bouts, plans, {**cluster.absent, **late})
    if as_json:
        typer.echo(json.dumps(found))
    else:
        report.show(found, console)


def _announce(console: Console, bout: match.Bout) -> None:
    seconds = ", ".join(f"{name} {taken:.3f} s" for name, taken in bout.seconds.items())
    line = f"{bout.source} -> {bout.target}: {bout.bytes_moved / 1e6:.1f} MB, {seconds}"
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(main)
