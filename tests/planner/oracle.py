"""The plan search by brute force: every raw candidate of every model-stage, every combination, nothing dropped early.

Written from the paper and the design, not from the code. It shares with the search only what a candidate costs:

    TP a power of two that divides the heads, kv heads divide TP or the reverse; all TP groups fit inside nodes
    PP a power of two, at most the layers; 1 for the model-stage that generates      DP divides the batch
    tp * pp * dp within the pool
    the first device carries all: sum of states + the largest live <= capacity * (1 - headroom), of the worst ranks
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.planner import candidates as room
from nereus.planner.request import SearchRequest
from nereus.spec.stages import ACTOR_TRAINING

Shape = tuple[tuple[str, int, int, int], ...]
"""(model-stage, tp, pp, dp) of all model-stages."""


@dataclass(frozen=True, slots=True)
class Raw:
    """One candidate and what it costs."""

    plan: StagePlan
    seconds: float
    state: int
    live: int


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest plan of one shape."""

    seconds: float
    shape: Shape


def shape_of(plans: Iterator[StagePlan] | tuple[StagePlan, ...]) -> Shape:
    return tuple(sorted((plan.stage, plan.layout.tp, plan.layout.pp, plan.dp) for plan in plans))


def raw_candidates(request: SearchRequest, stage: str) -> list[Raw]:
    """All legal candidates of a model-stage, whatever they need."""
    plans = [request.pinned[stage]] if stage in request.pinned else list(_legal_plans(request, stage))
    return [_raw(request, plan) for plan in plans]


def brute_force(request: SearchRequest) -> list[Best]:
    """The fastest feasible plan of every shape, fastest first."""
    room_bytes = request.capacity_bytes * (1 - request.headroom)
    found: dict[Shape, float] = {}
    for chosen in itertools.product(*(raw_candidates(request, stage) for stage in sorted(request.states))):
        if sum(raw.state for raw in chosen) + max(raw.live for raw in chosen) > room_bytes:
            continue
        replicas = next(raw.plan.dp for raw in chosen if raw.plan.stage == request.generates)
        seconds = sum(raw.seconds for raw in chosen) + request.cost.sync_seconds(replicas)
        shape = shape_of(tuple(raw.plan for raw in chosen))
        found[shape] = min(found.get(shape, seconds), seconds)
    return sorted((Best(seconds, shape) for shape, seconds in found.items()), key=lambda best: best.seconds)


def _legal_plans(request: SearchRequest, stage: str) -> Iterator[StagePlan]:
    model, batch, pool = request.cost.model, request.longest, len(request.devices)
    nodes = Counter(request.node_of[device] for device in request.devices).values()
    updates = batch.updates if stage == ACTOR_TRAINING else 1
    powers = [2**exponent for exponent in range(12)]
    for tp, pp, dp in itertools.product(powers, powers, range(1, pool + 1)):
        legal = (
            tp * pp * dp <= pool
            and pp * dp <= sum(node // tp for node in nodes)
            and model.num_heads % tp == 0
            and (model.num_kv_heads % tp == 0 or tp % model.num_kv_heads == 0)
            and pp <= (1 if stage == request.generates else model.num_layers)
            and batch.sequences % (dp * updates) == 0
        )
        if legal:
            rows = batch.sequences // (dp * updates)
            for micro_batch in {min(size, rows) for size in request.micro_batches}:
                yield StagePlan(stage, Layout(tp, pp), dp, tuple(range(tp * pp * dp)), micro_batch)


def _raw(request: SearchRequest, plan: StagePlan) -> Raw:
    cost, state = request.cost, request.states[plan.stage]
    ranks = [
        room.stage_footprint(plan, rank, state, cost.model, cost.dtype, request.longest) for rank in range(plan.layout.size)
    ]
    fullest, busiest = max(rank.state for rank in ranks), max(rank.live for rank in ranks)
    return Raw(plan, cost.stage_seconds(plan, request.mean), fullest, busiest)
