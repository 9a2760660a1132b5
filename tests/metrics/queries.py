"""Queries of dashboards and alerts, taken apart."""

from __future__ import annotations

import re

SELECTOR = re.compile(r"\b(nereus_\w+)\b(?:{([^}]*)})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)")


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
