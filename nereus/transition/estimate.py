"""The critical path of a transition: how long the job stands at the boundary for it (L_tran of Eq. (2)).

Set-up of communicators, then each operation as long as its busiest endpoint or uplink sends, receives and copies;
operations on common endpoints follow each other in dispatch order (one transfer lane per device), those that share a node's
uplink share its bandwidth, others run at the same time. An operation that was never measured costs what these rates say,
never nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nereus.layout.catalog import EndpointId
from nereus.layout.moves import NodeOf
from nereus.transition.collectives import GroupKey
from nereus.transition.lanes import in_order
from nereus.transition.ops import Op, Transition
from nereus.transition.tasks import Task
from nereus.transition.traffic import sent_bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a part of a transition was predicted to take, and what it took."""

    predicted_s: float
    measured_s: float

    @property
    def correction(self) -> float:
        """Factor half of the way from the prediction to what was measured; 1 where nothing was predicted."""
        if self.predicted_s <= 0:
            return 1.0
        return 0.5 + 0.5 * min(max(self.measured_s / self.predicted_s, 0.2), 5.0)


@dataclass(frozen=True, slots=True)
class LinkRates:
    """How fast state moves and groups are made."""

    wire_bytes_s: float = 0.4e9
    """Between two endpoints, packing included: a fifth of what Gloo alone reaches, since all pairs share the cores."""
    copy_bytes_s: float = 1.2e9
    """Into fresh memory on one endpoint."""
    op_s: float = 0.08
    """Fixed seconds of an operation: submitting, waking, answering."""
    bucket_s: float = 0.02
    """Until all members of a stream know that a bucket has landed."""
    near_bytes_s: float | None = None
    """Between two endpoints of a node, where that is another link; None: as between any two."""
    uplink_bytes_s: float | None = None
    """Of a node, out and in each, all its endpoints together; None: never the bottleneck, as between emulated nodes."""
    group_s: float = 0.02
    """Seconds per member to make a communicator."""
    scale: float = 1.0
    """Measured over predicted seconds of moving, from the transitions so far."""
    setup_scale: float = 1.0
    """The same of making communicators: the one says nothing of the other."""

    def corrected(self, setup: Outcome, moving: Outcome) -> LinkRates:
        """Rates after one more transition: half of the way to what was measured."""
        return replace(self, scale=self.scale * moving.correction, setup_scale=self.setup_scale * setup.correction)


def transition_seconds(
    transition: Transition,
    new_groups: Mapping[EndpointId, tuple[GroupKey, ...]],
    rates: LinkRates,
    node_of: NodeOf | None = None,
) -> float:
    """Predicted seconds: set-up on the busiest endpoint, then the longest chain of operations, commit included.

    `node_of` tells which endpoints share a node; without it all do.
    """
    tasks = tasks_of((*transition.moving, *transition.held), rates, node_of or {})
    moving = in_order(tasks, [task.after for task in tasks]).seconds + rates.op_s
    return setup_seconds(new_groups, rates) + rates.scale * moving


def setup_seconds(new_groups: Mapping[EndpointId, tuple[GroupKey, ...]], rates: LinkRates) -> float:
    """Predicted seconds until all communicators are made: those of the busiest endpoint, one after the other."""
    busiest = max((sum(len(key.members) for key in keys) for keys in new_groups.values()), default=0)
    return rates.setup_scale * rates.group_s * busiest


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
    busy: defaultdict[EndpointId, float] = defaultdict(float)
    uplink: defaultdict[str, float] = defaultdict(float)
    for move in op.copies:
        busy[move.target.endpoint] += move.num_bytes / rates.copy_bytes_s
    for (source, target), size in sent_bytes(op).items():
        near = node_of.get(source) == node_of.get(target)
        rate = rates.near_bytes_s if near and rates.near_bytes_s else rates.wire_bytes_s
        busy[source] += size / rate
        busy[target] += size / rate
        if rates.uplink_bytes_s and not near:
            uplink[f"out of {node_of[source]}"] += size
            uplink[f"into {node_of[target]}"] += size
    moving = max(busy.values(), default=0.0)
    if rates.uplink_bytes_s:
        moving = max([moving, *(size / rates.uplink_bytes_s for size in uplink.values())])
    seconds = rates.op_s + moving + rates.bucket_s * (len(op.stream.buckets) if op.stream else 0)
    shares = {link: size / (rates.uplink_bytes_s or 1.0) / seconds for link, size in uplink.items()}
    return seconds, shares
