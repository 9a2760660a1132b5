"""The model in SCIP: whole starts, a binary for "ends before" of each pair that shares a device, and cumulative uplinks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import networkx as nx

from benchmarks.ordering.model import TICK_S, Model
from benchmarks.ordering.solved import Solved

MB = 1e6
"""SCIP computes in floats with a tolerance: memory in megabytes keeps coefficients small."""


def solve(model: Model, limit_s: float) -> Solved:
    """The shortest order that SCIP finds within the time."""
    import pyscipopt

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(model.problem.tasks)))
    graph.add_edges_from((before, index) for index, waits in enumerate(model.free) for before in waits)
    if not nx.is_directed_acyclic_graph(graph):
        return Solved("infeasible", None)
    scip = pyscipopt.Model()
    scip.hideOutput()
    scip.setParam("limits/time", limit_s)
    built = _Built(scip, pyscipopt.quicksum, model, nx.transitive_closure_dag(graph))
    built.build()
    scip.optimize()
    status = scip.getStatus()
    if scip.getNSols():
        return Solved("optimal" if status == "optimal" else "feasible", round(scip.getObjVal()) * TICK_S)
    return Solved("infeasible" if status == "infeasible" else "limit", None)


class _Built:
    """The variables and constraints of one model."""

    def __init__(self, scip: Any, quicksum: Any, model: Model, closed: nx.DiGraph) -> None:
        self.scip, self.quicksum, self.model, self.closed = scip, quicksum, model, closed
        self.lengths = [round(task.seconds / TICK_S) for task in model.problem.tasks]
        self.horizon = sum(self.lengths)
        self.starts = [scip.addVar(vtype="I", lb=0, ub=self.horizon) for _ in self.lengths]
        self.end_first: dict[tuple[int, int], Any] = {}
        self.start_by: dict[tuple[int, int], Any] = {}

    def build(self) -> None:
        end = self.scip.addVar(lb=0, ub=self.horizon)
        for index, before in enumerate(self.model.free):
            self.scip.addCons(end >= self.starts[index] + self.lengths[index])
            for other in before:
                self.scip.addCons(self.starts[index] >= self.starts[other] + self.lengths[other])
        self._lanes()
        self._memory()
        self.scip.setObjective(end)

    def ends_before(self, first: int, second: int) -> Any:
        """1 only if the first ends before the second starts."""
        if self.closed.has_edge(first, second):
            return 1
        if self.closed.has_edge(second, first):
            return 0
        if (first, second) not in self.end_first:
            self.end_first[first, second] = flag = self.scip.addVar(vtype="B")
            big = self.horizon + self.lengths[first]
            end = self.starts[first] + self.lengths[first]
            self.scip.addCons(self.starts[second] >= end - big * (1 - flag))
        return self.end_first[first, second]

    def starts_by(self, first: int, second: int) -> Any:
        """0 only if the first starts after the second has started."""
        if self.closed.has_edge(first, second):
            return 1
        if self.closed.has_edge(second, first):
            return 0
        if (first, second) not in self.start_by:
            self.start_by[first, second] = flag = self.scip.addVar(vtype="B")
            self.scip.addCons(self.starts[first] >= self.starts[second] + 1 - (self.horizon + 1) * flag)
        return self.start_by[first, second]

    def _lanes(self) -> None:
        lanes: defaultdict[str, set[int]] = defaultdict(set)
        links: defaultdict[str, list[int]] = defaultdict(list)
        for index, task in enumerate(self.model.problem.tasks):
            for member in task.members:
                lanes[member].add(index)
            for link in task.uplinks:
                links[link].append(index)
        pairs = {(a, b) for of_one in lanes.values() for a in of_one for b in of_one if a < b}
        for a, b in sorted(pairs):
            if not self.closed.has_edge(a, b) and not self.closed.has_edge(b, a):
                self.scip.addCons(self.ends_before(a, b) + self.ends_before(b, a) == 1)
        for link, users in links.items():
            if len(users) > 1:
                shares = [round(100 * self.model.problem.tasks[index].uplinks[link]) for index in users]
                starts, lengths = [self.starts[i] for i in users], [self.lengths[i] for i in users]
                self.scip.addConsCumulative(starts, lengths, shares, 100)

    def _memory(self) -> None:
        problem = self.model.problem
        users: defaultdict[str, list[int]] = defaultdict(list)
        for index, task in enumerate(problem.tasks):
            for endpoint in {*task.takes, *task.gives}:
                users[endpoint].append(index)
        seen: set[object] = set()
        for endpoint, of_one in users.items():
            held = problem.held.get(endpoint, 0)
            takes = {i: problem.tasks[i].takes.get(endpoint, 0) / MB for i in of_one}
            gives = {i: problem.tasks[i].gives.get(endpoint, 0) / MB for i in of_one}
            key = held, tuple((i, takes[i], gives[i]) for i in of_one)
            if key in seen or held / MB + sum(takes.values()) <= problem.usable_bytes / MB:
                continue
            seen.add(key)
            for index in (i for i in of_one if takes[i]):
                others = [i for i in of_one if i != index]
                changes = [takes[i] * self.starts_by(i, index) - gives[i] * self.ends_before(i, index) for i in others]
                level = held / MB + takes[index] + self.quicksum(changes)
                self.scip.addCons(level <= problem.usable_bytes / MB)
