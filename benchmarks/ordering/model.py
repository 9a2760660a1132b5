"""A transition as the solvers see it: the same operations and local precedence, in whole ticks; only the order is free.

operations -> waits inside a model-stage + who leaves a device before whom (found here, pair by pair) -> Model
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import networkx as nx

from nereus.layout.catalog import EndpointId
from nereus.transition.dag import Change
from nereus.transition.estimate import LinkRates, tasks_of
from nereus.transition.ops import Transition
from nereus.transition.ownership import Movements
from nereus.transition.tasks import Problem, Task

TICK_S = 1e-4
"""Solvers count whole numbers: durations are rounded up to a tenth of a millisecond, for us as for them."""

RATES = LinkRates(
    wire_bytes_s=25e9,
    near_bytes_s=200e9,
    uplink_bytes_s=100e9,
    copy_bytes_s=1e12,
    op_s=0.005,
    bucket_s=0.001,
    group_s=0.0,
)
"""A device's network interface, links inside a node, a node's uplink, device memory; 5 ms for whatever is carried out.
Communicators are made before anything moves, so they are no part of the order."""


@dataclass(frozen=True)
class Model:
    """What all contestants are given."""

    problem: Problem
    """Memory, lanes, durations and uplinks in ticks and percent; `after` as the transition has it."""
    free: tuple[frozenset[int], ...]
    """What each task waits for if nothing but data and ownership binds it."""


def model_of(transition: Transition, problem: Problem, change: Change) -> Model:
    """The model of operations whose memory is in `problem`."""
    timed = tasks_of(transition.ops, RATES, change.node_of)
    tasks = tuple(
        _in_ticks(replace(task, seconds=t.seconds, uplinks=t.uplinks)) for task, t in zip(problem.tasks, timed, strict=True)
    )
    return Model(replace(problem, tasks=tasks), waits(transition, change))


def _in_ticks(task: Task) -> Task:
    """Durations in whole ticks, shares in whole percent."""
    shares = {link: min(100, max(1, round(100 * share))) / 100 for link, share in task.uplinks.items()}
    return replace(task, seconds=ceil(task.seconds / TICK_S - 1e-9) * TICK_S, uplinks=shares)


def waits(transition: Transition, change: Change) -> tuple[frozenset[int], ...]:
    """The waits inside each model-stage, and those between exclusive ones: a device is left before it is taken."""
    ops = transition.ops
    number = {op.id: index for index, op in enumerate(ops)}
    owned: dict[str, set[EndpointId]] = {
        stage: {e for emu in emus for e in emu.endpoints} for stage, emus in change.current.items()
    }
    freed = [{site.endpoint for site in op.frees} for op in ops]
    found: list[frozenset[int]] = []
    for op in ops:
        inside = {number[name] for name in op.after if ops[number[name]].stage == op.stage}
        takes = {endpoint for emu in op.makes for endpoint in emu.endpoints} - owned[op.stage]
        before = {
            index
            for index, other in enumerate(ops)
            if other.stage != op.stage and change.exclusive(other.stage, op.stage) and freed[index] & takes
        }
        found.append(frozenset(inside | before))
    return tuple(found)


def has_circle(planned: Movements, change: Change) -> bool:
    """Whether movements wait for one another in a circle, by their data and by who owns which device."""
    graph: nx.DiGraph = nx.DiGraph()
    for stage, movements in planned.items():
        owned = {e for emu in change.current[stage] for e in emu.endpoints}
        for index, movement in enumerate(movements):
            graph.add_edges_from(((stage, before), (stage, index)) for before in movement.after)
            takes = {e for emu in movement.makes for e in emu.endpoints} - owned
            for other, theirs in planned.items():
                if other != stage and change.exclusive(stage, other):
                    gone = [i for i, m in enumerate(theirs) if takes & {site.endpoint for site in m.frees}]
                    graph.add_edges_from(((other, i), (stage, index)) for i in gone)
    return not nx.is_directed_acyclic_graph(graph)
