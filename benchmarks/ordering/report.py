"""What a run found: one JSON object, or a table and a few sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ordering.running import Answer
from nereus.transition.verdicts import Found

LARGE = 40
"""Operations from which on the speed against solvers is told apart: a tiny model is built in ten milliseconds."""

Figures = dict[str, Any]


def summary(answers: Sequence[Answer], reasons: Mapping[str, str]) -> Figures:
    """All figures, ready for JSON. What was not measured is None, and `reasons` says why."""
    refused = [a for a in answers if a.found.is_refusal]
    ordered = [a for a in answers if not a.circle]
    sizes = sorted({a.devices for a in ordered})
    return {
        "instances": len(answers),
        "unsafe": sum(a.unsafe is not None for a in answers),
        "feasible_only_solver": sum(a.only_solver for a in answers) if _compared(answers) else None,
        "makespan_ratio": _spread([a for a in answers if a.makespan and a.best_makespan]),
        "speedup_vs_solver": _speedups(answers),
        "seconds": {str(n): max(a.order_seconds for a in ordered if a.devices == n) for n in sizes},
        "greedy_only_refusals": sum(not a.greedy_alone and not a.found.is_refusal for a in answers),
        "median_seconds": {str(n): median(a.order_seconds for a in ordered if a.devices == n) for n in sizes},
        "circle_seconds": max((a.order_seconds for a in answers if a.circle), default=None),
        "whole_seconds": {str(n): median(a.whole_seconds for a in answers if a.devices == n) for n in sizes},
        "found": {str(found): count for found, count in sorted(Counter(a.found for a in answers).items())},
        "refused": {
            "proved": sum(a.found is Found.REFUSED_PROVED for a in refused),
            "limit": sum(a.found is Found.REFUSED_LIMIT for a in refused),
            "circles": sum(a.circle for a in refused),
            "solver_agrees": sum(_agrees(a) for a in refused if not a.circle),
        },
        "destroys": {"held": sum(a.held for a in answers), "all": sum(a.destroys for a in answers)},
        "compared": _compared(answers),
        "optimal_by_solver": sum(any(s.status == "optimal" for s, _ in a.solved.values()) for a in answers),
        "operations": {"median": median(a.operations for a in answers), "max": max(a.operations for a in answers)},
        "problems": [a.unsafe for a in answers if a.unsafe]
        + [f"seed {a.seed}: only a solver" for a in answers if a.only_solver],
        "reasons": dict(reasons),
    }


def _compared(answers: Sequence[Answer]) -> dict[str, int]:
    """How many instances each solver was given."""
    return dict(Counter(name for a in answers for name in a.solved))


def _agrees(answer: Answer) -> bool:
    """Whether a solver proves of a refusal that there is no order."""
    return any(solved.status == "infeasible" for solved, _ in answer.solved.values())


def _spread(answers: Sequence[Answer]) -> Figures:
    """Our makespan over the best that a solver found."""
    ratios = sorted(a.makespan / a.best_makespan for a in answers if a.makespan and a.best_makespan)
    if not ratios:
        return {"median": None, "p95": None, "max": None, "num": 0}
    return {"median": median(ratios), "p95": ratios[int(0.95 * (len(ratios) - 1))], "max": ratios[-1], "num": len(ratios)}


def _speedups(answers: Sequence[Answer]) -> Figures:
    """Processor time of the faster solver over ours."""
    known = [(a.operations, a.solver_seconds / a.order_seconds) for a in answers if a.solver_seconds and a.order_seconds]
    large = [speedup for operations, speedup in known if operations >= LARGE]
    return {
        "median": median([speedup for _, speedup in known]) if known else None,
        "median_40ops": median(large) if large else None,
        "num_40ops": len(large),
    }


def show(found: Figures, console: Console) -> None:
    """The figures as a table."""
    table = Table("figure", "value")
    for name, value in found.items():
        if name not in ("problems", "reasons"):
            table.add_row(name, str(value))
    console.print(table)
    for line in (*found["problems"], *found["reasons"].values()):
        console.print(line, highlight=False, markup=False)
