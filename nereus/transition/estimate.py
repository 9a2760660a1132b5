"""The critical path of a transition: how long the job stands at the boundary for it (L_tran of Eq. (2)).

Set-up of communicators, then each operation as long as its busiest endpoint or uplink sends, receives and copies;
operations on common endpoints follow each other in dispatch order (one transfer lane per device), those that share a node's
uplink share its bandwidth, others run at the same time. Devices that are emulated on one machine share its cores: all bytes
together take at least what the machine needs for them. An operation that was never measured costs what these rates say,
never nothing; `learning.py` corrects them by what was measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nereus.layout.catalog import EndpointId
from nereus.layout.moves import NodeOf
from nereus.transition.collectives import GroupKey
from nereus.transition.lanes import Schedule, in_order
from nereus.transition.ops import Op, Transition
from nereus.transition.tasks import Task
from nereus.transition.traffic import op_bytes


@dataclass(frozen=True, slots=True)
class LinkRates:
    """How fast state moves and groups are made."""

    wire_bytes_s: float = 0.4e9
    """Between two endpoints, packing included: a fifth of what Gloo alone reaches, since all pairs share the cores."""
    copy_bytes_s: float = 1.2e9
    """Into fresh memory on one endpoint."""
    op_s: float = 0.08
    """Fixed seconds of an operation: submitting, waking, answering."""
    release_s: float | None = None
    """The same of an operation that only releases, which no peer and no memory is waited for; None: as of any."""
    bucket_s: float = 0.02
    """Until all members of a stream know that a bucket has landed."""
    near_bytes_s: float | None = None
    """Between two endpoints of a node, where that is another link; None: as between any two."""
    uplink_bytes_s: float | None = None
    """Of a node, out and in each, all its endpoints together; None: never the bottleneck, as between emulated nodes."""
    group_s: float = 0.02
    """Seconds per member to make a communicator."""
    base_s: float = 0.08
    """Fixed seconds of any transition: every endpoint is asked to install its program, and at the end to bind its units."""
    host_bytes_s: float | None = None
    """Sent by all endpoints together, where their devices are emulated on one machine; None: each has its own."""
    host_copy_bytes_s: float | None = None
    """Copied by all endpoints together on that machine."""

    def fixed_s(self, op: Op) -> float:
        """What an operation takes however little it moves."""
        return self.op_s if self.release_s is None or not op.is_release else self.release_s


class Load(NamedTuple):
    """The bytes of one endpoint in an operation."""

    copied: float = 0.0
    near: float = 0.0
    """Sent and received inside its node, where that is another link."""
    wire: float = 0.0
    """Sent and received otherwise."""

    def seconds(self, rates: LinkRates) -> float:
        """How long it takes."""
        near = self.near / rates.near_bytes_s if rates.near_bytes_s else 0.0
        return self.copied / rates.copy_bytes_s + near + self.wire / rates.wire_bytes_s


class Estimate(NamedTuple):
    """What a transition is predicted to take."""

    setup_s: float
    """The groups of the busiest endpoint."""
    schedule: Schedule
    """Of the operations, from the start of the first."""
    tasks: list[Task]
    """The operations, in dispatch order, the held ones last."""
    moving_s: float
    """All operations: their schedule, or what the machine that they share needs, if that is longer."""
    seconds: float
    """All of it."""


def transition_seconds(
    transition: Transition,
    new_groups: Mapping[EndpointId, tuple[GroupKey, ...]],
    rates: LinkRates,
    node_of: NodeOf | None = None,
) -> float:
    """Predicted seconds: set-up on the busiest endpoint, then the longest chain of operations, commit included.

    `node_of` tells which endpoints share a node; without it all do.
    """
    return estimated(transition, new_groups, rates, node_of or {}).seconds


def estimated(
    transition: Transition,
    new_groups: Mapping[EndpointId, tuple[GroupKey, ...]],
    rates: LinkRates,
    node_of: NodeOf,
) -> Estimate:
    """The same, in its parts."""
    setup_s = rates.group_s * most_members(new_groups)
    ops = (*transition.moving, *transition.held)
    tasks = tasks_of(ops, rates, node_of)
    schedule = in_order(tasks, [task.after for task in tasks])
    moving_s = max(schedule.seconds, _host_seconds(ops, rates))
    return Estimate(setup_s, schedule, tasks, moving_s, setup_s + moving_s + rates.base_s)


def most_members(new_groups: Mapping[EndpointId, tuple[GroupKey, ...]]) -> int:
    """Members of all groups that the endpoint with the most of them makes."""
    return max((sum(len(key.members) for key in keys) for keys in new_groups.values()), default=0)


def tasks_of(ops: Iterable[Op], rates: LinkRates, node_of: NodeOf) -> list[Task]:
    """How long each operation takes, and which uplinks."""
    found: list[Task] = []
    number: dict[str, int] = {}
    for op in ops:
        seconds, uplinks = op_demand(op, rates, node_of)
        after = frozenset(number[name] for name in op.after)
        number[op.id] = len(found)
        found.append(Task(op.stage, op.is_release, op.members, after, seconds=seconds, uplinks=uplinks))
    return found


def op_seconds(op: Op, rates: LinkRates, node_of: NodeOf | None = None) -> float:
    """Predicted seconds of one operation: that of its busiest endpoint or uplink."""
    return op_demand(op, rates, node_of or {})[0]


def op_demand(op: Op, rates: LinkRates, node_of: NodeOf) -> tuple[float, dict[str, float]]:
    """Predicted seconds of one operation alone, and the share of each uplink that it takes meanwhile."""
    loads, uplinks = loads_of(op, rates, node_of)
    moving = max((load.seconds(rates) for load in loads.values()), default=0.0)
    if rates.uplink_bytes_s:
        moving = max([moving, *(size / rates.uplink_bytes_s for size in uplinks.values())])
    seconds = rates.fixed_s(op) + moving + rates.bucket_s * num_buckets(op)
    shares = {link: size / (rates.uplink_bytes_s or 1.0) / seconds for link, size in uplinks.items()}
    return seconds, shares


def loads_of(op: Op, rates: LinkRates, node_of: NodeOf) -> tuple[dict[EndpointId, Load], dict[str, float]]:
    """The bytes of each endpoint, and of each uplink where uplinks have a rate."""
    copied, near, wire = (defaultdict[EndpointId, float](float) for _ in range(3))
    uplink: defaultdict[str, float] = defaultdict(float)
    for (source, target), size in op_bytes(op).items():
        if source == target:
            copied[source] += size
            continue
        is_near = node_of.get(source) == node_of.get(target)
        link = near if is_near and rates.near_bytes_s else wire
        link[source] += size
        link[target] += size
        if rates.uplink_bytes_s and not is_near:
            uplink[f"out of {node_of[source]}"] += size
            uplink[f"into {node_of[target]}"] += size
    busy = copied.keys() | near.keys() | wire.keys()
    return {e: Load(copied.get(e, 0.0), near.get(e, 0.0), wire.get(e, 0.0)) for e in busy}, uplink


def num_buckets(op: Op) -> int:
    """Buckets of a stream; none where all is opened at once."""
    return len(op.stream.buckets) if op.stream else 0


def host_bytes(ops: Iterable[Op]) -> tuple[float, float]:
    """Bytes that all endpoints together send, and copy."""
    sent = copied = 0.0
    for op in ops:
        for (source, target), size in op_bytes(op).items():
            sent, copied = (sent, copied + size) if source == target else (sent + size, copied)
    return sent, copied


def _host_seconds(ops: Iterable[Op], rates: LinkRates) -> float:
    """What the machine that all endpoints share needs for their bytes, after the first operation's fixed part."""
    if not rates.host_bytes_s or not rates.host_copy_bytes_s:
        return 0.0
    sent, copied = host_bytes(ops)
    return rates.op_s + sent / rates.host_bytes_s + copied / rates.host_copy_bytes_s if sent or copied else 0.0
