"""The critical path of a transition: how long the job stands at the boundary for it (L_tran of Eq. (2)).

Set-up of communicators, then each operation as long as its busiest endpoint sends, receives and copies; operations on common
endpoints follow each other (one transfer lane per device), others run at the same time. An operation that was never
measured costs what these rates say, never nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nereus.layout.catalog import EndpointId
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Op, Transition
from nereus.transition.traffic import wire_bytes


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
    group_s: float = 0.02
    """Seconds per member to make a communicator."""
    scale: float = 1.0
    """Measured over predicted, from the transitions so far."""

    def corrected(self, predicted_s: float, measured_s: float) -> LinkRates:
        """Rates after one more transition: half of the way to what was measured."""
        ratio = min(max(measured_s / max(predicted_s, 1e-6), 0.2), 5.0)
        return replace(self, scale=self.scale * (0.5 + 0.5 * ratio))


def transition_seconds(
    transition: Transition, new_groups: Mapping[EndpointId, tuple[GroupKey, ...]], rates: LinkRates
) -> float:
    """Predicted seconds: set-up on the busiest endpoint, then the longest chain of operations, commit included."""
    setup = max((sum(rates.group_s * len(key.members) for key in keys) for keys in new_groups.values()), default=0.0)
    done: dict[str, float] = {}
    free: dict[EndpointId, float] = {}
    for op in (*transition.moving, *transition.held):
        start = max([done[before] for before in op.after] + [free.get(endpoint, 0.0) for endpoint in op.members])
        end = start + op_seconds(op, rates)
        done[op.id] = end
        free.update(dict.fromkeys(op.members, end))
    return rates.scale * (setup + max(done.values(), default=0.0) + rates.op_s)


def op_seconds(op: Op, rates: LinkRates) -> float:
    """Predicted seconds of one operation: that of its busiest endpoint."""
    copied: dict[EndpointId, int] = {}
    for move in op.copies:
        copied[move.target.endpoint] = copied.get(move.target.endpoint, 0) + move.num_bytes
    wire: dict[EndpointId, int] = {}
    for moved in wire_bytes(op):
        for endpoint, (sent, received) in moved.items():
            wire[endpoint] = wire.get(endpoint, 0) + sent + received
    busiest = max(
        (wire.get(e, 0) / rates.wire_bytes_s + copied.get(e, 0) / rates.copy_bytes_s for e in {*wire, *copied}), default=0.0
    )
    return rates.op_s + busiest + rates.bucket_s * (len(op.stream.buckets) if op.stream else 0)
