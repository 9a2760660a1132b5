"""Queries of dashboards and alerts, taken apart."""

from __future__ import annotations

import re

VARIABLES = {"$__rate_interval": "1m", "$__range": "10m", "$nereus_job": ".*"}
"""What Grafana puts in."""

SELECTOR = re.compile(r"\b(nereus_\w+)\b(?:{([^}]*)})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)")


def filled(query: str) -> str:
    """A query as Prometheus gets it."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def selectors(query: str) -> list[tuple[str, tuple[str, ...]]]:
    """The metrics that a query asks for, each with the labels by which it is chosen."""
    bare = GROUPING.sub("", filled(query))
    return [(name, tuple(LABEL.findall(labels))) for name, labels in SELECTOR.findall(bare)]
