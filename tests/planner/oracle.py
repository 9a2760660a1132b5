"""The plan search by brute force: every raw candidate of every model-stage, every combination, nothing dropped early.

Written from the paper and the design, not from the code. It shares with the search only what a candidate costs:

    TP a power of two that divides the heads, kv heads divide TP or the reverse; all TP groups fit inside nodes
    PP a power of two, at most the layers; 1 for the model-stage that generates      DP divides the batch
    tp * pp * dp within the pool
    each device: sum of the states that it hosts + their largest live <= capacity * (1 - headroom), of the worst ranks
    model-stages run one after the other: L_step is their sum and the weight sync, wherever they lie
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.planner.problem import Holder, Pool, Problem, Rows, Stage
from nereus.planner.request import SearchRequest
from nereus.spec.stages import ACTOR_TRAINING
from tests.planner.exhaustive import brute_force_plans

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


def brute_force(request: SearchRequest, top: int) -> list[Best]:
    """The fastest feasible plan of the `top` best shapes, fastest first, wherever the model-stages lie."""
    names = sorted(request.states)
    tables = [raw_candidates(request, name) for name in names]
    shapes = [sorted({(raw.plan.layout.tp, raw.plan.layout.pp) for raw in table}) for table in tables]
    holders = []
    for name, table, classes in zip(names, tables, shapes, strict=True):
        rows = []
        for raw in table:
            sync = request.cost.sync_seconds(raw.plan.dp) if name == request.generates else 0.0
            tp, pp = raw.plan.layout.tp, raw.plan.layout.pp
            rows.append(([raw.seconds + sync], tp * pp * raw.plan.dp, raw.state, raw.live, tp, classes.index((tp, pp))))
        seconds, *columns = (list(column) for column in zip(*rows, strict=True))
        holders.append(Holder(name, (Stage.TRAINING,), Rows.of([s[0] for s in seconds], *columns)))
    sizes = list(Counter(request.node_of[device] for device in request.devices).values())
    pool = Pool.of(sizes, request.capacity_bytes * (1 - request.headroom))
    found = brute_force_plans(Problem(tuple(holders), pool, overlaps=False), top)
    return [
        Best(
            seconds,
            tuple(
                (name, *classes[layout], n // math.prod(classes[layout]))
                for name, classes, (layout, n) in zip(names, shapes, shape, strict=True)
            ),
        )
        for seconds, shape in found
    ]


def _legal_plans(request: SearchRequest, stage: str) -> Iterator[StagePlan]:
    model, batch, pool = request.cost.model.decoder, request.longest, len(request.devices)
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
            devices = tuple(range(tp * pp * dp))
            for micro_batch in {min(size, rows) for size in request.micro_batches}:
                yield StagePlan(stage, Layout(tp, pp), dp, devices, micro_batch)
                if stage == ACTOR_TRAINING:
                    yield StagePlan(stage, Layout(tp, pp), dp, devices, micro_batch, recompute=True)


def _raw(request: SearchRequest, plan: StagePlan) -> Raw:
    cost, state = request.cost, request.states[plan.stage]
    ranks = cost.footprints(plan, state, request.longest)
    fullest, busiest = max(rank.state for rank in ranks), max(rank.live for rank in ranks)
    return Raw(plan, cost.stage_seconds(plan, request.mean), fullest, busiest)
