"""Published all-reduce times inside a node: the link model, and what calibrates a kind before any step was run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.costing.generation import Timed
from benchmarks.costing.measured import read
from nereus.cost.efficiency import Efficiencies
from nereus.cost.execution import Execution
from nereus.cost.operations import amounts
from nereus.cost.training import tp_amounts
from nereus.cost.volume import Workload
from nereus.spec.hardware import ACCELERATORS, Hardware

KINDS = {"A100-80GB DGX": "A100-80GB", "H100-80GB DGX": "H100"}


def all_reduces(folder: Path, kind: str) -> list[Timed]:
    """All-reduces of 2 to 8 devices of one node, as the collectives of a TP group."""
    found = []
    for line in read(folder, "collectives"):
        if KINDS.get(line["hardware"]) != kind or line["collective"] != "all_reduce" or line["nodes"] != "1":
            continue
        run = Execution(hardware=Hardware(ACCELERATORS[kind]), tp=int(line["gpus"]), sequences=1, tokens=1)
        elements = float(line["size_bytes"]) / run.item_bytes
        work = Workload(phases=(), serial=amounts(tp_amounts(run, elements, 1)))
        found.append(Timed((line["gpus"],), work, float(line["time_ms_median"]) / 1e3))
    return found


def learnt(kind: str, timed: Sequence[Timed]) -> Efficiencies:
    """What these times say."""
    return Efficiencies(kind).learn([one.work for one in timed], [one.seconds for one in timed])


def judge(folder: Path) -> dict[str, Any]:
    """Every other size is seen, the others are judged."""
    report: dict[str, Any] = {}
    for kind in KINDS.values():
        timed = sorted(all_reduces(folder, kind), key=lambda one: (one.group, one.seconds))
        known = learnt(kind, timed[::2])
        errors = [abs(known.seconds(one.work) / one.seconds - 1) for one in timed[1::2]]
        report[kind] = {"times": len(errors), "mape_latency": round(mean(errors), 4), "median_ape": round(median(errors), 4)}
    return report
