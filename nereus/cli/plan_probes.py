"""The runs that `nereus plan OUTLINE --suggest-probes N` says to measure next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from nereus.cli.tables import show_table
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.probes import suggest
from nereus.spec.ran import RanStage


def suggested(planner: OutlinePlanner, most: int, ran: Mapping[str, RanStage]) -> list[dict[str, Any]]:
    """The runs as plain data, the most valuable first."""
    return [
        {
            "holder": probe.option.holder,
            "kind": planner.pricer.kind_name(probe.option.kind),
            **probe.option.choice,
            "layout": str(probe.option),
            "num_devices": probe.option.num_devices,
            "stage_seconds": dict(probe.option.seconds),
            "stage_spread": dict(probe.spread),
            "saves_seconds": probe.saves_s,
            "pins": [{"kind": p.kind, "role": p.role, "class": p.op.value, "spread": p.spread} for p in probe.pins],
        }
        for probe in suggest(planner, most, ran)
    ]


def show(console: Console, probes: Sequence[Mapping[str, Any]]) -> None:
    """The runs as a table."""
    if not probes:
        console.print("No single measurement would change the choice of the plan.", highlight=False)
        return
    title = "Runs whose times would change the choice most"
    rows = []
    for probe in probes:
        spread, several = probe["stage_spread"], len(probe["stage_seconds"]) > 1
        taken = [f"{s:.2f} ±{spread[stage]:.0%}{f' {stage}' * several}" for stage, s in probe["stage_seconds"].items()]
        pins = [f"{pin['class']} ±{pin['spread']:.0%}" for pin in probe["pins"]] or ["this layout alone"]
        rows.append((probe["holder"], probe["layout"], "\n".join(taken), f"{probe['saves_seconds']:.2g}", "\n".join(pins)))
    show_table(console, title, ("", "layout", "seconds", "saves, s per step", "pins"), rows)
