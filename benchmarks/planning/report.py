"""What a run found: one JSON object, or a table and a few sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.planning.comparing import Compared
from benchmarks.planning.cpsat import Gap
from benchmarks.planning.timing import SEQUENCES, Timed, peak_rss_mb

REACH_S = {64: 0.03, 1024: 0.05, 16384: 0.4}
"""What the search should take at most."""


def summary(timed: Sequence[Timed], compared: Compared, gaps: Sequence[Gap] | None) -> dict[str, Any]:
    """All figures, ready for JSON. What was not measured is None, and `reasons` says why."""
    known = [gap.gap for gap in gaps or () if gap.gap is not None]
    reasons = {}
    if gaps is None:
        reasons["gap_vs_cpsat"] = "OR-tools is not installed: pip install ortools"
    elif not known:
        reasons["gap_vs_cpsat"] = "CP-SAT found no plan within its time"
    plain = {devices: [t for t in timed if t.plain and t.devices == devices] for devices in SEQUENCES}
    return {
        "instances": compared.instances,
        "instances_not_optimal": compared.not_optimal,
        "gap_vs_cpsat": {"median": median(known), "max": max(known)} if known else {"median": None, "max": None},
        "seconds": {str(devices): max(t.seconds for t in of) for devices, of in plain.items()},
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "median_seconds": {str(devices): median(t.seconds for t in of) for devices, of in plain.items()},
        "cpu_seconds": {str(devices): max(t.cpu_seconds for t in of) for devices, of in plain.items()},
        "fastest_seconds": {str(devices): max(t.fastest_s for t in of) for devices, of in plain.items()},
        "reach_seconds": {str(devices): seconds for devices, seconds in REACH_S.items()},
        "relaxed_not_placed": sum(t.report.relaxed_not_placed for t in timed),
        "small": {
            "without_plan": compared.without_plan,
            "uneven": compared.uneven,
            "mixed_kinds": compared.mixed_kinds,
            "asynchronous": compared.asynchronous,
        },
        "cpsat": [
            {
                "case": gap.case.name,
                "step_seconds": gap.step_seconds,
                "cpsat_seconds": gap.cpsat_seconds,
                "cpsat_bound": gap.cpsat_bound,
            }
            for gap in gaps or ()
        ],
        "cases": [_case(t) for t in timed],
        "reasons": reasons,
    }


def _case(timed: Timed) -> dict[str, Any]:
    return {
        "case": timed.case.name,
        "sequences": timed.case.sequences,
        "seconds": timed.seconds,
        "fastest_s": timed.fastest_s,
        "cpu_seconds": timed.cpu_seconds,
        "step_seconds": timed.step_seconds,
        "rows": timed.report.rows,
        "frontier_rows": list(timed.report.frontier_rows),
        "tree_nodes": timed.report.tree_nodes,
        "leaves": timed.report.leaves,
        "relaxed_not_placed": timed.report.relaxed_not_placed,
    }


def show(found: Mapping[str, Any], console: Console) -> None:
    """The figures for a reader."""
    table = Table("devices", "worst ms", "median ms", "reach ms")
    for devices, seconds in found["seconds"].items():
        reach, middle = found["reach_seconds"][devices], found["median_seconds"][devices]
        table.add_row(devices, f"{seconds * 1e3:.1f}", f"{middle * 1e3:.1f}", f"{reach * 1e3:.0f}")
    console.print(table)
    gap = found["gap_vs_cpsat"]
    lines = [
        f"{found['instances']} small instances, {found['instances_not_optimal']} not optimal.",
        f"Peak memory of the process: {found['peak_rss_mb']} MB. Leaves neither placed nor refuted: "
        f"{found['relaxed_not_placed']}.",
        f"Slower than CP-SAT's best plan by (median, most): {gap['median']}, {gap['max']}.",
        *(f"{name}: {why}" for name, why in found["reasons"].items()),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
