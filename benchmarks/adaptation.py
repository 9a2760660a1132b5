"""Nereus against what is done instead, on real availability traces and response lengths, in simulated worlds.

    python -m benchmarks.adaptation --data DIR [--quick] [--json] [--steps N] [--gammas]

Every pair of a trace and a length curve is one scenario; models, algorithms and synchrony rotate over them, and every one is
a world of its own. All policies of a scenario meet the same world. Figures are ratios of throughput within a scenario.
Scenarios run side by side, one per core.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.adapting.cases import QUICK_CASES, STEPS, Case, cases
from nereus.sim.outcome import Outcome
from nereus.sim.policies import simulate

RIVALS = {
    "of_oracle": "oracle",
    "of_static": "static-per-budget",
    "of_replan_always": "replan-always",
    "of_per_component": "per-component",
    "of_restart": "restart",
}
"""Key of the result -> whose throughput is the denominator."""

GAMMAS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Confidence margins that the paper sweeps."""


def main(
    data: Annotated[Path, typer.Option(help="Folder of measured data.")],
    quick: Annotated[bool, typer.Option("--quick", help="A few scenarios of few steps.")] = False,
    steps: Annotated[int, typer.Option(help="RL steps of a scenario at most; 0: as many as the mode has.", min=0)] = 0,
    gammas: Annotated[bool, typer.Option("--gammas", help="Sweep gamma on the first scenarios, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Measure what adapting is worth."""
    console = Console(stderr=as_json)
    chosen = cases(data)
    if quick:
        chosen = tuple(chosen[at] for at in QUICK_CASES)
    limit = steps or (STEPS // 4 if quick else STEPS)
    with ProcessPoolExecutor() as pool:
        running = [pool.submit(_run, case, limit) for case in chosen]
        for done in as_completed(running):
            console.print(_told(done.result()), highlight=False, soft_wrap=True)
        rows = [done.result() for done in running]
    found: dict[str, Any] = {"runs": len(rows), "steps": limit, **_ratios(rows), "scenarios": rows}
    if gammas:
        found["gammas"] = _gammas(chosen[: len(QUICK_CASES)], limit)
    if as_json:
        typer.echo(json.dumps(found))
        return
    for key, rival in RIVALS.items():
        console.print(f"nereus over {rival}: median {found[key]['median']}, least {found[key]['min']}")


def _run(case: Case, steps: int) -> dict[str, Any]:
    """All policies through one scenario."""
    scenario = replace(case.scenario(), max_steps=steps)
    outcomes: dict[str, Outcome] = {}
    began = perf_counter()
    for policy in ("nereus", *RIVALS.values()):
        outcomes[policy] = simulate(scenario, policy)
    return {
        "scenario": case.name,
        "seconds": perf_counter() - began,
        "throughput": {name: outcome.throughput for name, outcome in outcomes.items()},
        "spent": {name: {str(c): s for c, s in outcome.spent_s.items()} for name, outcome in outcomes.items()},
        "transitions": {name: len(outcome.transitions) for name, outcome in outcomes.items()},
    }


def _told(row: Mapping[str, Any]) -> str:
    """A line for the terminal."""
    found: Mapping[str, float] = row["throughput"]
    ratios = ", ".join(f"{name} {_ratio(found['nereus'], found[name]):.3f}" for name in RIVALS.values())
    return f"{row['scenario']}: {found['nereus']:.0f} tokens/s, over {ratios} ({row['seconds']:.0f} s)"


def _ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    found = {}
    for key, rival in RIVALS.items():
        ratios = [_ratio(row["throughput"]["nereus"], row["throughput"][rival]) for row in rows]
        found[key] = {"median": _finite(median(ratios)), "min": _finite(min(ratios))}
    return found


def _finite(ratio: float) -> float | None:
    """JSON has no infinity."""
    return ratio if isfinite(ratio) else None


def _ratio(ours: float, theirs: float) -> float:
    """Infinite where the other got nothing done, 1 where neither did."""
    if theirs:
        return ours / theirs
    return float("inf") if ours else 1.0


def _gammas(chosen: Sequence[Case], steps: int) -> dict[str, float | None]:
    """Median throughput over the scenarios at each gamma, relative to that at the paper's 0.5."""
    found: dict[float, list[float]] = {gamma: [] for gamma in GAMMAS}
    for case, gamma in product(chosen, GAMMAS):
        scenario = replace(case.scenario(gamma=gamma), max_steps=steps)
        found[gamma].append(simulate(scenario, "nereus").throughput)
    return {f"{g:g}": _finite(median(_ratio(a, b) for a, b in zip(found[g], found[0.5], strict=True))) for g in GAMMAS}


if __name__ == "__main__":
    typer.run(main)
