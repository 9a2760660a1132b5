"""The order of a transition against CP-SAT and SCIP: whether it is found, how long it takes, and whether it is safe.

    python -m benchmarks.transition_dag [--quick] [--data DIR] [--json]

Generated changes of two to six model-stages on nearly full pools of 8 to 1,024 devices. The solvers (extra `bench`) get the
same operations, with the order across model-stages free; without them their keys are null, and `reasons` says so.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.ordering import cpsat, report, scip
from benchmarks.ordering.running import Answer, Solver, answer
from tests.transition.generated import generated

SIZES = {(8, 16, 32, 64): 260, (128, 256): 24, (1024,): 20}
"""Instances by pools of devices."""
QUICK = {(8, 16, 32, 64): 36, (128, 256): 2, (1024,): 2}

FIRST_SEED = 90_000
"""Seeds that nothing was tuned on."""

LIMIT_S = 3.0
"""Seconds that a solver has for an instance: three hundred take a quarter of an hour at most."""

PACKAGES = {"cpsat": ("ortools", cpsat.solve), "scip": ("pyscipopt", scip.solve)}


def main(
    quick: Annotated[bool, typer.Option("--quick", help="40 instances, a second for each solver.")] = False,
    data: Annotated[Path | None, typer.Option(help="Not used: the changes are made, not read.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Measure how safe, how good and how fast the order of a transition is."""
    del data
    console = Console(stderr=as_json)
    solvers: dict[str, Solver] = {}
    reasons: dict[str, str] = {}
    for name, (package, solve) in PACKAGES.items():
        if find_spec(package) is None:
            reasons[name] = f"{package} is not installed: pip install {package}"
        else:
            solvers[name] = solve
    answers: list[Answer] = []
    for sizes, count in (QUICK if quick else SIZES).items():
        for _ in range(count):
            found = answer(generated(FIRST_SEED + len(answers), sizes), solvers, 1.0 if quick else LIMIT_S)
            answers.append(found)
            console.print(line(found), highlight=False, markup=False, soft_wrap=True)
    figures = report.summary(answers, reasons)
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        report.show(figures, console)


def line(found: Answer) -> str:
    """An instance for a person."""
    said = ", ".join(
        f"{name} {solved.status} {solved.seconds} in {took:.2f} s" for name, (solved, took) in found.solved.items()
    )
    ours = f"{found.found} {found.makespan} in {1e3 * found.order_seconds:.1f} ms"
    return f"{found.seed}: {found.devices} devices, {found.operations} operations: {ours}; {said}"


if __name__ == "__main__":
    typer.run(main)
