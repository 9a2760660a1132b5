"""What Ray says of its nodes, as facts: who is there, how many devices each offers, and who is being drained until when.

ray.nodes() rows, draining nodes -> nodes_of -> Node, the head first, then by id
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nereus.policy.seating import Node

HEAD_RESOURCE = "node:__internal_head__"
"""The resource by which Ray marks the head node of a cluster."""

MILLISECONDS = 1000.0
"""Of a second: Ray tells the end of a drain in milliseconds since 1970."""


def head_node(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The head node among what `ray.nodes()` returns."""
    return next(row for row in rows if row["Resources"].get(HEAD_RESOURCE))


def nodes_of(rows: Sequence[Mapping[str, Any]], draining: Mapping[str, int], resource: str) -> tuple[Node, ...]:
    """The living nodes and the devices that each offers as `resource`.

    `draining` has the end of each drain, in milliseconds since 1970, 0 where none was said.
    """
    alive = sorted((r for r in rows if r["Alive"]), key=lambda r: (not r["Resources"].get(HEAD_RESOURCE), r["NodeID"]))
    return tuple(
        Node(
            id=row["NodeID"],
            devices=int(row["Resources"].get(resource, 0)),
            is_leaving=row["NodeID"] in draining,
            gone_s=draining[row["NodeID"]] / MILLISECONDS if draining.get(row["NodeID"]) else None,
        )
        for row in alive
    )
