"""What a transition has taken beside what was predicted, operation by operation, and what is learnt from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nereus.control.carrying import Carrying, Leg
from nereus.control.state import JobState
from nereus.policy.proposal import expected
from nereus.transition.learning import LearntLinks, stretches
from nereus.transition.traffic import new_groups


@dataclass(frozen=True, slots=True)
class Taken:
    """A transition that was carried out."""

    seconds: float
    """From the begin of its installation to its commit, digests left out: what L_tran predicts."""
    ops: list[dict[str, Any]]
    """Each operation in dispatch order: predicted and measured begin, from the first operation's, and seconds."""
    learnt: LearntLinks
    """The rates with this transition."""

    @classmethod
    def of(cls, state: JobState, carrying: Carrying) -> Taken:
        """`state` is that from before the commit, on which it was predicted."""
        snapshot, transition = state.snapshot, carrying.task.transition
        around = carrying.seconds(Leg.INSTALL, Leg.MOVE) + carrying.seconds(Leg.BIND, Leg.DONE)
        moving = carrying.seconds(Leg.MOVE, Leg.DIGEST_AFTER) + carrying.seconds(Leg.HELD, Leg.BIND)
        groups = new_groups(transition, snapshot.ready)
        seen = stretches(transition, groups, snapshot.links, snapshot.endpoint_nodes, (around, moving))
        known = state.moved or LearntLinks.nothing(state.config.links)
        return cls(around + moving, _ops(state, carrying), known.learn(seen))


def _ops(state: JobState, carrying: Carrying) -> list[dict[str, Any]]:
    """For a Gantt: the held operations run after the proof, which is left out of their begin here as in the prediction."""
    transition, estimate = carrying.task.transition, expected(state.snapshot, carrying.task.transition)
    nodes = state.snapshot.endpoint_nodes
    proof_s = carrying.seconds(Leg.DIGEST_AFTER, Leg.HELD)
    held = {op.id for op in transition.held}
    found = []
    for op, start, task in zip(
        (*transition.moving, *transition.held), estimate.schedule.starts, estimate.tasks, strict=True
    ):
        span = carrying.times[op.id]
        found.append(
            {
                "id": op.id,
                "stage": op.stage,
                "primitives": list(op.primitives),
                "endpoints": list(op.members),
                "bytes": op.num_bytes,
                "num_nodes": len({nodes[endpoint] for endpoint in op.members}),
                "predicted_start_s": start,
                "predicted_s": task.seconds,
                "start_s": span.began_s - carrying.began_s[Leg.MOVE] - (proof_s if op.id in held else 0.0),
                "seconds": span.ended_s - span.began_s,
            }
        )
    return found
