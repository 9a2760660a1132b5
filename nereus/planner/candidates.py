"""The candidates of one model-stage: every legal layout, DP degree, micro-batch and recomputation, with latency and memory.

legal: tp divides the heads and the kv heads divide tp or the reverse, pp <= layers, dp divides the batch,
       tp * pp * dp <= pool, TP inside a node      dropped: what exceeds memory alone
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.layout.tensors import Kind
from nereus.planner.request import SearchRequest


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to lay out a model-stage, and what it costs. Its devices are placeholders until the plan is placed."""

    plan: StagePlan
    seconds: float
    """Latency of the model-stage in one RL step."""
    state_bytes: int
    """On each device, while the unit is there: the fullest rank."""
    live_bytes: int
    """On top while it computes: the busiest rank, which need not be the fullest: no device is fuller than both say."""

    @property
    def num_devices(self) -> int:
        return len(self.plan.devices)


def candidates(request: SearchRequest, stage: str) -> tuple[Candidate, ...]:
    """All candidates of a model-stage that fit in memory alone, fastest first."""
    if stage in request.pinned:
        return (_candidate(request, request.pinned[stage]),)
    made = (_candidate(request, plan) for plan in _legal(request, stage))
    fitting = [c for c in made if c.state_bytes + c.live_bytes <= request.usable_bytes]
    return tuple(sorted(fitting, key=_order))


def _order(candidate: Candidate) -> tuple[float, int, int, int, Layout, int, bool]:
    """Fastest first; ties by fewer devices, then by less memory, then by layout, so that the order is total."""
    plan = candidate.plan
    memory = candidate.state_bytes, candidate.live_bytes
    return (candidate.seconds, candidate.num_devices, *memory, plan.layout, plan.micro_batch, plan.recompute)


def _candidate(request: SearchRequest, plan: StagePlan) -> Candidate:
    footprints = request.cost.footprints(plan, request.states[plan.stage], request.longest)
    return Candidate(
        plan,
        request.cost.stage_seconds(plan, request.mean),
        max(f.state for f in footprints),
        max(f.live for f in footprints),
    )


def _legal(request: SearchRequest, stage: str) -> Iterator[StagePlan]:
    """Powers of two for TP and PP, as is common practice; any DP degree for which the batch divides."""
    model, pool, updates = request.cost.model.decoder, len(request.devices), _updates(request, stage)
    for tp in _powers_of_two(pool):
        divides_kv = model.num_kv_heads % tp == 0 or tp % model.num_kv_heads == 0
        if model.num_heads % tp or not divides_kv:
            continue
        for pp in _powers_of_two(pool // tp):
            if pp > model.num_layers or (pp > 1 and stage == request.generates):
                continue
            for dp in range(1, request.tp_groups(tp) // pp + 1):
                wanted = request.shapes.get(stage, (Layout(tp, pp), dp))
                if wanted == (Layout(tp, pp), dp) and request.longest.sequences % (dp * updates) == 0:
                    yield from _with_micro_batches(request, stage, Layout(tp, pp), dp)


def _trains(request: SearchRequest, stage: str) -> bool:
    return any(tensor.kind is Kind.EXP_AVG for tensor in request.states[stage].tensors)


def _updates(request: SearchRequest, stage: str) -> int:
    """Updates that divide the sequences of a model-stage: only training works on a part of the step at a time."""
    return request.longest.updates if _trains(request, stage) else 1


def _with_micro_batches(request: SearchRequest, stage: str, layout: Layout, dp: int) -> Iterator[StagePlan]:
    rows = request.longest.sequences // (dp * _updates(request, stage))
    devices = tuple(range(layout.size * dp))
    for micro_batch in sorted({min(size, rows) for size in request.micro_batches}):
        for recompute in (False, True) if _trains(request, stage) else (False,):
            yield StagePlan(stage, layout, dp, devices, micro_batch, recompute=recompute)


def _powers_of_two(most: int) -> Iterator[int]:
    degree = 1
    while degree <= most:
        yield degree
        degree *= 2
