"""The execution-overlap graph of an RL step, and its critical path: L_step (paper, section 4.2).

    Workflow, seconds of each model-stage, devices of each holder, seconds of edges
        -> nodes: model-stages, the boundary, weight syncs;  edges: data, resharding, serialization
        -> critical path L_step;  C_s of Eq. (1)

Nodes that share a device and do not wait for each other are serialized, in the order that makes the critical path shortest.
Asynchronously the graph spans the interval between two weight syncs: generation of the next batch beside inference and
training on this one, L = max(L_gen, L_inf + L_train) + weight sync.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from types import MappingProxyType

import networkx as nx

from nereus.emu.plan import DeviceId, spans
from nereus.errors import LayoutError
from nereus.spec.workflow import GENERATION, INFERENCE, TRAINING, Workflow

BOUNDARY = "boundary"
"""The node at which all updates of the step are done; weight syncs come after it."""

Edge = tuple[str, str]
SECONDS = "seconds"
"""The attribute of nodes and edges."""


@dataclass(frozen=True, slots=True)
class Timings:
    """What a plan is predicted to take."""

    stages: Mapping[str, float]
    """Seconds of each model-stage."""
    syncs: Mapping[Edge, float] = field(default_factory=dict)
    """Seconds of the weight sync between two model-stages; 0 where none is named (weights that are shared)."""
    edges: Mapping[Edge, float] = field(default_factory=dict)
    """Seconds between two model-stages of which one waits for the other, such as resharding; 0 by default."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What runs serially and what in parallel in one RL step, or in one interval between weight syncs."""

    graph: nx.DiGraph
    """With `seconds` on nodes and edges; an edge between model-stages that share devices has `serialized`."""
    path: tuple[str, ...]
    """The critical path."""
    seconds: float
    """Its length: L_step."""
    concurrent: Mapping[str, tuple[frozenset[str], ...]]
    """C_s by stage: the maximal sets of model-stages that run at the same time, on disjoint devices."""


def overlap(workflow: Workflow, devices: Mapping[str, Set[DeviceId]], timings: Timings) -> Overlap:
    """The overlap graph of a plan.

    `devices` has R_M of each holder of the workflow. Raises LayoutError where devices are shared that must not be.
    """
    used = {stage.name: frozenset(devices[stage.holder]) for stage in workflow.stages}
    for one, other in workflow.apart():
        if not used[one].isdisjoint(used[other]):
            shared = spans(tuple(used[one] & used[other]))
            raise LayoutError(f"{one} and {other} run at the same time and share devices {shared}; give them different ones")
    graph = _unserialized(workflow, timings)
    used |= {sync.name: used[sync.source] | used[sync.target] for sync in workflow.syncs}
    shared_pairs = [(one, other) for one, other in combinations(used, 2) if not used[one].isdisjoint(used[other])]
    for earlier, later in _serialize(graph, shared_pairs):
        graph.add_edge(earlier, later, seconds=0.0, serialized=True)
    schedule = _Schedule(_waits_of(graph))
    return Overlap(graph, schedule.path(), schedule.seconds, MappingProxyType(concurrent_sets(workflow, used)))


def concurrent_sets(workflow: Workflow, used: Mapping[str, frozenset[DeviceId]]) -> dict[str, tuple[frozenset[str], ...]]:
    """C_s of Eq. (1): for each stage s the maximal sets of model-stages that run in it on pairwise disjoint devices.

    `used` has the devices of each model-stage. Asynchronously generation runs beside both other stages and is in their
    sets; it has none of its own.
    """
    found = {}
    for role in (INFERENCE, TRAINING) if workflow.asynchronous else (GENERATION, INFERENCE, TRAINING):
        roles = {role, GENERATION} if workflow.asynchronous else {role}
        members = [stage.name for stage in workflow.stages if stage.role in roles]
        disjoint = nx.Graph()
        disjoint.add_nodes_from(members)
        disjoint.add_edges_from(pair for pair in combinations(members, 2) if used[pair[0]].isdisjoint(used[pair[1]]))
        found[role] = tuple(sorted(map(frozenset, nx.find_cliques(disjoint)), key=sorted))
    return found


def _unserialized(workflow: Workflow, timings: Timings) -> nx.DiGraph:
    """Model-stages, the boundary after them, weight syncs after that; edges of data and resharding."""
    graph = nx.DiGraph()
    for stage in workflow.stages:
        graph.add_node(stage.name, seconds=timings.stages[stage.name])
    graph.add_node(BOUNDARY, seconds=0.0)
    for earlier, later in workflow.dependencies():
        graph.add_edge(earlier, later, seconds=timings.edges.get((earlier, later), 0.0))
    for stage in workflow.stages:
        graph.add_edge(stage.name, BOUNDARY, seconds=0.0)
    for sync in workflow.syncs:
        graph.add_node(sync.name, seconds=timings.syncs.get((sync.source, sync.target), 0.0))
        graph.add_edge(BOUNDARY, sync.name, seconds=0.0)
    return graph


def _serialize(graph: nx.DiGraph, shared: list[Edge]) -> tuple[Edge, ...]:
    """The order of each pair that shares a device and has none yet, with the shortest critical path.

    Branch and bound over the orientations: a pair that one order already implies is not branched on, and what cannot get
    below the best is left. Six model-stages have at most a handful of such pairs.
    """
    best: tuple[float, tuple[Edge, ...]] = (inf, ())

    def search(waits: Waits, chosen: tuple[Edge, ...]) -> None:
        nonlocal best
        schedule = _Schedule(waits)
        if schedule.seconds >= best[0]:
            return
        pair = next((pair for pair in shared if schedule.unordered(*pair)), None)
        if pair is None:
            best = schedule.seconds, chosen
            return
        for earlier, later in (pair, pair[::-1]):
            own, before = waits[later]
            search({**waits, later: (own, {**before, earlier: 0.0})}, (*chosen, (earlier, later)))

    search(_waits_of(graph), ())
    return best[1]


Waits = Mapping[str, tuple[float, Mapping[str, float]]]
"""Of each node its own seconds, and what it waits for: the node before -> seconds of the edge."""


def _waits_of(graph: nx.DiGraph) -> Waits:
    edges = {node: {before: data[SECONDS] for before, data in graph.pred[node].items()} for node in graph}
    return {node: (graph.nodes[node][SECONDS], before) for node, before in edges.items()}


class _Schedule:
    """Every node as early as what it waits for allows. Plain dictionaries: a search makes dozens of these."""

    def __init__(self, waits: Waits) -> None:
        self.ends: dict[str, float] = {}
        self.last: dict[str, str | None] = {}
        """The node that each one waits for longest."""
        self.earlier: dict[str, frozenset[str]] = {}
        """All nodes that must have ended before."""
        for node in waits:
            self._visit(node, waits)

    def _visit(self, node: str, waits: Waits) -> None:
        if node in self.ends:
            return
        own, before = waits[node]
        for other in before:
            self._visit(other, waits)
        starts = [(self.ends[other] + seconds, other) for other, seconds in before.items()]
        start, self.last[node] = max(starts, default=(0.0, None))
        self.ends[node] = start + own
        self.earlier[node] = frozenset(before).union(*(self.earlier[other] for other in before))

    @property
    def seconds(self) -> float:
        """Length of the critical path."""
        return max(self.ends.values())

    def unordered(self, one: str, other: str) -> bool:
        """Whether neither of two nodes waits for the other."""
        return one not in self.earlier[other] and other not in self.earlier[one]

    def path(self) -> tuple[str, ...]:
        """The critical path."""
        node: str | None = max(self.ends, key=lambda name: (self.ends[name], len(self.earlier[name])))
        found = []
        while node is not None:
            found.append(node)
            node = self.last[node]
        return tuple(reversed(found))
