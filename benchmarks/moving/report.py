"""What a run found: one JSON object, or a table and a few sentences.

Ratios are taken pair by pair within the run; medians are over pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.moving.match import CONTESTANTS, Bout

LARGE_BYTES = 32_000_000
"""Pairs that move more than this are compared with raw bandwidth; with less, the time is set-up, not transport."""


def summary(bouts: list[Bout], plans: Mapping[str, float | None], reasons: Mapping[str, str]) -> dict[str, Any]:
    """All figures, ready for JSON. What was not measured is None, and `reasons` says why."""
    return {
        "pairs": len(bouts),
        "bit_mismatches": sum(len(bout.wrong) for bout in bouts),
        "bytes_moved": sum(bout.bytes_moved for bout in bouts),
        "bytes_lower_bound": sum(bout.bytes_lower_bound for bout in bouts),
        "peak_extra_bytes": max(bout.peak_extra_bytes for bout in bouts),
        "plan_ms": dict(plans),
        "digest_s": median(bout.digest_s for bout in bouts),
        "seconds": {
            name: _spread(bout.seconds[name] for bout in bouts if name in bout.seconds)["median"] for name in CONTESTANTS
        },
        "speedup_vs_dcp": {
            **_spread(map(_speedup, bouts)),
            "nothing_crosses": _spread(_speedup(bout) for bout in bouts if not bout.bytes_moved),
            "something_crosses": _spread(_speedup(bout) for bout in bouts if bout.bytes_moved),
        },
        "fraction_of_raw_bandwidth": _spread(_fraction(bout) for bout in bouts if bout.bytes_moved > LARGE_BYTES),
        "reasons": dict(reasons),
        "by_pair": [_by_pair(bout) for bout in bouts],
    }


def show(found: Mapping[str, Any], console: Console) -> None:
    """The figures for a reader."""
    table = Table("from", "to", "MB", "of bound", *CONTESTANTS, "x DCP", "of raw", "extra MB", "plan ms", "digest s")
    for pair in found["by_pair"]:
        table.add_row(
            pair["source"],
            pair["target"],
            f"{pair['bytes_moved'] / 1e6:.1f}",
            _number(pair["bytes_moved"] / pair["bytes_lower_bound"] if pair["bytes_lower_bound"] else None, "x"),
            *(_number(pair["seconds"].get(name)) for name in CONTESTANTS),
            _number(pair["speedup_vs_dcp"]),
            _number(pair["fraction_of_raw_bandwidth"]),
            f"{pair['peak_extra_bytes'] / 1e6:.1f}",
            f"{pair['plan_ms']:.1f}",
            f"{pair['digest_s']:.2f}",
        )
    console.print(table)
    for line in _sentences(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _sentences(found: Mapping[str, Any]) -> Iterable[str]:
    speedup, raw = found["speedup_vs_dcp"], found["fraction_of_raw_bandwidth"]
    medians = ", ".join(f"{name} {_number(found['seconds'][name])} s" for name in CONTESTANTS)
    yield f"{found['pairs']} pairs, {found['bit_mismatches']} tensors with a wrong bit. Medians: {medians}."
    yield (
        f"Bytes: {found['bytes_moved'] / 1e6:.1f} MB moved, {found['bytes_lower_bound'] / 1e6:.1f} MB is the least. "
        f"Worst peak above the larger of both layouts: {found['peak_extra_bytes'] / 1e6:.1f} MB."
    )
    yield f"Faster than DCP by (median, least): {_both(speedup)}."
    for name in ("nothing_crosses", "something_crosses"):
        yield f"  where {name.replace('_', ' ')}: {_both(speedup[name])} over {speedup[name]['pairs']} pairs."
    yield f"Of raw bandwidth where more than {LARGE_BYTES / 1e6:.0f} MB cross: {_both(raw)} over {raw['pairs']} pairs."
    for case, taken in found["plan_ms"].items():
        yield f"Planning {case}: {_number(taken)} ms."
    for name, why in found["reasons"].items():
        yield f"{name}: {why}."


def _by_pair(bout: Bout) -> dict[str, Any]:
    return {
        "source": str(bout.source),
        "target": str(bout.target),
        "bytes_moved": bout.bytes_moved,
        "bytes_lower_bound": bout.bytes_lower_bound,
        "peak_extra_bytes": bout.peak_extra_bytes,
        "plan_ms": bout.plan_ms,
        "digest_s": bout.digest_s,
        "seconds": {name: bout.seconds.get(name) for name in CONTESTANTS},
        "speedup_vs_dcp": _speedup(bout),
        "fraction_of_raw_bandwidth": _fraction(bout) if bout.bytes_moved else None,
        "wrong": list(bout.wrong),
    }


def _speedup(bout: Bout) -> float:
    return bout.seconds["dcp"] / bout.seconds["nereus"]


def _fraction(bout: Bout) -> float:
    return bout.seconds["raw_gloo"] / bout.seconds["nereus"]


def _spread(values: Iterable[float]) -> dict[str, float | int | None]:
    found = list(values)
    return {"median": median(found) if found else None, "min": min(found, default=None), "pairs": len(found)}


def _both(spread: Mapping[str, Any]) -> str:
    return f"{_number(spread['median'])}, {_number(spread['min'])}"


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.3g}{unit}" if value >= 1 or unit else f"{value:.2f}"
