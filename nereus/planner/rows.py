"""From a search request to the numbers of the search: each model-stage a holder, each of its candidates a row.

SearchRequest  --candidates-->  tables of Candidate  --here-->  Problem        devices by position in the pool
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nereus.layout.tensors import Kind
from nereus.planner.candidates import Candidate
from nereus.planner.problem import Holder, Node, Pool, Problem, Rows, Stage
from nereus.planner.request import SearchRequest


def problem_of(request: SearchRequest, tables: Mapping[str, Sequence[Candidate]]) -> Problem:
    """The problem of a request; holders are in the order of the tables, rows in that of their candidates."""
    position = {device: at for at, device in enumerate(request.devices)}
    holders = []
    for name, table in tables.items():
        pinned = request.pinned.get(name)
        where = tuple(position[device] for device in pinned.devices if device in position) if pinned else None
        holders.append(Holder(name, (stage_of(request, name),), _rows(request, name, table), where))
    return Problem(tuple(holders), _pool(request), overlaps=request.overlaps)


def stage_of(request: SearchRequest, name: str) -> Stage:
    """The stage of an RL step in which a model-stage is active."""
    if name == request.generates:
        return Stage.GENERATION
    trains = any(tensor.kind is Kind.EXP_AVG for tensor in request.states[name].tensors)
    return Stage.TRAINING if trains else Stage.INFERENCE


def _rows(request: SearchRequest, name: str, table: Sequence[Candidate]) -> Rows:
    """A table of one role. The weight sync to a generation replica lengthens a synchronous step by itself."""
    classes = {layout: at for at, layout in enumerate(sorted({candidate.plan.layout for candidate in table}))}
    generates, pinned = name == request.generates, name in request.pinned
    return Rows.of(
        [c.seconds + (request.cost.sync_seconds(c.plan.dp) if generates else 0.0) for c in table],
        [c.num_devices for c in table],
        [c.state_bytes for c in table],
        [c.live_bytes for c in table],
        [1 if pinned else c.plan.layout.tp for c in table],
        [classes[c.plan.layout] for c in table],
    )


def _pool(request: SearchRequest) -> Pool:
    nodes: dict[int, list[int]] = {}
    for position, device in enumerate(request.devices):
        nodes.setdefault(request.node_of[device], []).append(position)
    return Pool(tuple(Node(tuple(positions)) for positions in nodes.values()), (request.usable_bytes,))
