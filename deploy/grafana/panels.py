"""What a dashboard is made of: boards of rows of panels of queries, as plain values, and how queries are written.

jobs("nereus_steps_total") -> nereus_steps_total{nereus_job=~"$nereus_job"}      mean(...), share(...), per_second(...)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

WINDOW = "$__rate_interval"
"""Over which rates are taken: Grafana keeps it above four scrapes."""

Unit = Literal["short", "s", "bytes", "Bps", "percentunit", "reqps", "none", "bool_yes_no", "bool_on_off"]
"""Grafana's names of units; `s` is seconds, `percentunit` a share of 1."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query, and how its series are called."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Its width is in 24ths of the page."""

    title: str
    description: str
    """What it shows, and what to make of it."""
    unit: Unit
    queries: tuple[Query, ...]
    width: int = 8
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False
    decimals: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...] = field(default_factory=tuple)

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def jobs(name: str, **labels: str) -> str:
    """A metric of the jobs that are chosen at the top of the dashboard, with these label values."""
    more = "".join(f',{label}="{value}"' for label, value in labels.items())
    return f'{name}{{nereus_job=~"$nereus_job"{more}}}'


def increase(metric: str) -> str:
    """By how much a counter grew in each window."""
    return f"increase({metric}[{WINDOW}])"


def per_second(metric: str) -> str:
    """How fast a counter grows."""
    return f"rate({metric}[{WINDOW}])"


def mean(summary: str) -> str:
    """Mean of the observations of a summary of jobs since the start of the shown range; NaN where there were none."""
    return f"increase({jobs(f'{summary}_sum')}[$__range]) / increase({jobs(f'{summary}_count')}[$__range])"


def ratio(over: str, under: str) -> str:
    """Of the growth of two counters of jobs over the shown range; NaN where the lower one stood still."""
    return f"increase({jobs(over)}[$__range]) / increase({jobs(under)}[$__range])"


def stat(title: str, description: str, unit: Unit, expr: str, legend: str = "{{nereus_job}}", width: int = 4) -> Panel:
    """A panel with one figure per series."""
    return Panel(title, description, unit, (Query(expr, legend),), width, "stat")


def series(
    title: str, description: str, unit: Unit, *queries: tuple[str, str], width: int = 8, stacked: bool = False
) -> Panel:
    """A panel over time; each query is an expression and the name of its series."""
    return Panel(title, description, unit, tuple(Query(*query) for query in queries), width, stacked=stacked)
