"""A node takes its leave: Ray is told that it drains, jobs move off it, and whoever stops it waits for that.

preStop, systemd ExecStop -> nereus leave -> drain with a deadline -> jobs see the notice -> no worker left -> exit
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from nereus.errors import NereusError, UserError

POLL_S = 0.5
"""Seconds between two looks at who is still there."""

WORKER = "Worker"
"""The class of the actor that is one device."""


def leave(node: str | None, notice_s: float) -> tuple[int, float]:
    """Announce that a node of the connected cluster is gone in `notice_s` seconds, and wait until no job uses it.

    `node` is an id or an address; None: the node that this process is on. Returns how many devices are in use still when the
    time is over, 0 where all are free, and the seconds that it took. Raises UserError for a node that is not there.
    """
    import ray
    from ray._private.state import actors

    began_s = time.monotonic()
    leaver = node_named(ray.nodes(), node or ray.get_runtime_context().get_node_id())
    _drain(leaver, notice_s)
    while True:
        left = max(_granted(leaver), len(workers_on(actors(actor_state_name="ALIVE").values(), leaver)))
        waited_s = time.monotonic() - began_s
        if not left or waited_s >= notice_s:
            return left, waited_s
        time.sleep(POLL_S)


def _granted(node: str) -> int:
    """Devices of a node that jobs have, by the controller: one that starts has devices before it has workers on them.

    One while the controller does not answer: it restarts, and the node must not go before it has said that all are free.
    """
    from ray.exceptions import GetTimeoutError

    from actors.office import living

    try:
        office = living()
        return 0 if office is None else int(office.ask("granted", node))
    except (NereusError, GetTimeoutError):
        return 1


def node_named(rows: Sequence[Mapping[str, Any]], wanted: str) -> str:
    """The id of a living node, by its id, the beginning of it, or its address. Raises UserError where that is not one."""
    alive = [row for row in rows if row["Alive"]]
    found = [row["NodeID"] for row in alive if row["NodeID"].startswith(wanted) or row["NodeManagerAddress"] == wanted]
    if len(found) != 1:
        known = ", ".join(f"{row['NodeID'][:12]} at {row['NodeManagerAddress']}" for row in alive)
        raise UserError(f"--node: {wanted!r} is {'no node' if not found else 'more than one'} of {known}; give an id")
    return str(found[0])


def workers_on(rows: Any, node: str) -> list[Mapping[str, Any]]:
    """The living workers of devices of a node, among Ray's actors."""
    return [row for row in rows if row["ActorClassName"] == WORKER and row["Address"]["NodeID"] == node]


def _drain(node: str, notice_s: float) -> None:
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated import autoscaler_pb2

    gcs = GcsClient(address=ray.get_runtime_context().gcs_address)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    ends_ms = int((time.time() + notice_s) * 1000)
    accepted, why = gcs.drain_node(node, reason, "nereus leave", ends_ms)
    if not accepted:
        raise UserError(f"--node: Ray does not let {node[:12]} leave: {why}")
