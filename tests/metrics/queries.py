"""Queries of dashboards and alerts, taken apart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

DASHBOARDS = sorted((Path(__file__).parents[2] / "helm" / "nereus" / "files" / "dashboards").glob("*.json"))
SELECTOR = re.compile(r"\b(nereus_\w+)\b(?:{([^}]*)})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
OF_SEVERAL_JOBS = {"nereus_controller_jobs", "nereus_controller_devices", "nereus_controller_failing_seconds"}
"""Only a controller of several jobs tells them: a single run has no samples of them."""

GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)")


class Shown(NamedTuple):
    """One query of a panel."""

    board: str
    panel: str
    kind: str
    """`timeseries` or `stat`."""
    expr: str

    @property
    def is_of_several_jobs(self) -> bool:
        """Whether it asks for nothing but what a controller of several jobs tells."""
        return {name for name, _ in selectors(self.expr)} <= OF_SEVERAL_JOBS


def shown() -> list[Shown]:
    """Every query of every panel of every dashboard."""
    return [
        Shown(path.stem, panel["title"], panel["type"], target["expr"])
        for path in DASHBOARDS
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    ]


def filled(query: str, *, rate_interval: str = "1m", range: str = "10m") -> str:
    """A query as Prometheus gets it from Grafana, with all jobs chosen."""
    variables = {"$__rate_interval": rate_interval, "$__range": range, "$nereus_job": ".*"}
    for name, value in variables.items():
        query = query.replace(name, value)
    return query


def selectors(query: str) -> list[tuple[str, tuple[str, ...]]]:
    """The metrics that a query asks for, each with the labels by which it is chosen."""
    bare = GROUPING.sub("", filled(query))
    return [(name, tuple(LABEL.findall(labels))) for name, labels in SELECTOR.findall(bare)]
