"""The plan search by brute force over the table of candidates, in plain Python, written from the paper and the design.

It shares with the search what a candidate costs and nothing else: no frontier, no bounds, no certificates, no node states.

    every tuple of candidates, by its L if nothing were shared; stop when that is no better than the best ones found
    for each tuple every set of holders that may run serially, by its L: the longest path, shortest over all orders
    fits?  per node all ways to host maximal patterns, as devices that each holder can have; nodes added up

`literal` does without the last trick too: it tries every set of devices for every holder, for the smallest pools.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add, ge, mul

from nereus.planner.problem import Problem, Stage

Conflicts = frozenset[tuple[int, int]]
Shape = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Plain:
    """A problem in plain numbers."""

    stages: list[tuple[Stage, ...]]
    seconds: list[list[dict[Stage, float]]]
    """[holder][row][stage], and [holder][row] below."""
    n: list[list[int]]
    resident: list[list[float]]
    active: list[list[float]]
    q: list[list[int]]
    layout: list[list[int]]
    kind: list[list[int]]
    nodes: list[tuple[int, int]]
    """(kind, devices)"""
    host: list[list[float]]
    """[holder][row] For each device, on its node's host."""
    hosts: list[float]
    """[node] What its host has room for."""
    capacity: tuple[float, ...]
    edges: list[tuple[int, int, list[list[float]]]]
    asynchronous: bool
    overlaps: bool
    pinned: list[tuple[int, ...] | None]
    """Of every holder the devices that it must have."""

    @property
    def holders(self) -> range:
        return range(len(self.n))


def plain(problem: Problem) -> Plain:
    """A problem without arrays."""
    tables = [(holder, holder.rows) for holder in problem.holders]
    return Plain(
        [t.stages for t, _ in tables],
        [[{s: float(r.seconds[k, i]) for k, s in enumerate(t.stages)} for i in range(len(r))] for t, r in tables],
        [r.num_devices.tolist() for _, r in tables],
        [r.resident_bytes.tolist() for _, r in tables],
        [r.active_bytes.tolist() for _, r in tables],
        [r.quantum.tolist() for _, r in tables],
        [r.layout.tolist() for _, r in tables],
        [r.kind.tolist() for _, r in tables],
        [(node.kind, len(node.devices)) for node in problem.pool.nodes],
        [r.host_bytes.tolist() for _, r in tables],
        [node.host_bytes for node in problem.pool.nodes],
        problem.pool.capacity_bytes,
        [(edge.source, edge.target, edge.seconds.tolist()) for edge in problem.edges],
        problem.asynchronous,
        problem.overlaps,
        [holder.devices for holder in problem.holders],
    )


def length(p: Plain, chosen: tuple[int, ...], conflicts: Conflicts) -> float:
    """L_step if these pairs run one after the other."""
    by_stage: dict[Stage, float] = {}
    for stage in Stage:
        members = [i for i in p.holders if stage in p.stages[i]]
        if members:
            seconds = {i: p.seconds[i][chosen[i]][stage] for i in members}
            by_stage[stage] = sum(seconds.values()) if not p.overlaps else _shortest_order(members, seconds, conflicts)
    edges = sum(seconds[p.layout[a][chosen[a]]][p.layout[b][chosen[b]]] for a, b, seconds in p.edges)
    if not p.asynchronous:
        return sum(by_stage.values()) + edges
    rest = sum(seconds for stage, seconds in by_stage.items() if stage is not Stage.GENERATION)
    return max(by_stage.get(Stage.GENERATION, 0.0), rest) + edges


def _shortest_order(members: list[int], seconds: dict[int, float], conflicts: Conflicts) -> float:
    """The longest path of the conflict graph under the orientation that makes it shortest; an order is an orientation."""
    best = float("inf")
    for order in itertools.permutations(members):
        end: dict[int, float] = {}
        for i in order:
            before = [end[j] for j in end if (min(i, j), max(i, j)) in conflicts]
            end[i] = seconds[i] + max(before, default=0.0)
        best = min(best, max(end.values()))
    return best


def brute_force_plans(problem: Problem, top: int = 1) -> list[tuple[float, Shape]]:
    """The `top` best (L_step, shape), one per shape, fastest first."""
    p = plain(problem)
    tuples = sorted(
        (length(p, chosen, frozenset()), chosen) for chosen in itertools.product(*(range(len(rows)) for rows in p.n))
    )
    best: dict[Shape, float] = {}
    for ideal, chosen in tuples:
        worst = sorted(best.values())[top - 1] if len(best) >= top else float("inf")
        if ideal >= worst:
            break
        shape = tuple((p.layout[i][row], p.n[i][row]) for i, row in enumerate(chosen))
        limit = min(worst, best.get(shape, worst))
        found = _shortest(p, chosen, limit)
        if found < limit:
            best[shape] = found
    return sorted((seconds, shape) for shape, seconds in best.items())[:top]


def _shortest(p: Plain, chosen: tuple[int, ...], limit: float) -> float:
    """L_step of the best placement of a tuple, if below a limit."""
    if not _plausible(p, chosen):
        return float("inf")
    together = not p.overlaps and not p.asynchronous and not any(p.host[i][r] for i, r in enumerate(chosen))
    if together and _can_host(p, chosen, p.kind[0][chosen[0]], tuple(p.holders), frozenset()):
        return length(p, chosen, frozenset())  # every device can host all of them, and nothing is gained by being apart
    meeting = [pair for pair in itertools.combinations(p.holders, 2) if _meet(p, pair)]
    sets = [frozenset(c) for k in range(len(meeting) + 1) for c in itertools.combinations(meeting, k)]
    if not p.overlaps:
        sets = [frozenset(meeting)]
    for seconds, _, conflicts in sorted((length(p, chosen, c), -len(c), c) for c in sets):
        if seconds >= limit:
            return float("inf")
        if _fits(p, chosen, frozenset(meeting) - conflicts):
            return seconds
    return float("inf")


def _plausible(p: Plain, chosen: tuple[int, ...]) -> bool:
    """Spares hopeless tuples the enumeration: each candidate alone, and all the memory of all devices."""
    alone = all(
        p.resident[i][r] + p.active[i][r] <= p.capacity[p.kind[i][r]]
        and p.n[i][r] <= sum(size // p.q[i][r] * p.q[i][r] for kind, size in p.nodes if kind == p.kind[i][r])
        for i, r in enumerate(chosen)
    )
    needed = sum(p.n[i][r] * p.resident[i][r] for i, r in enumerate(chosen))
    offloaded = sum(p.n[i][r] * p.host[i][r] for i, r in enumerate(chosen))
    return alone and needed <= sum(p.capacity[kind] * size for kind, size in p.nodes) and offloaded <= sum(p.hosts)


def _meet(p: Plain, pair: tuple[int, int]) -> bool:
    return bool(set(p.stages[pair[0]]) & set(p.stages[pair[1]]))


def must_be_apart(p: Plain, i: int, j: int) -> bool:
    """Asynchronous generation shares no device with the rest."""
    return p.asynchronous and (Stage.GENERATION in p.stages[i]) != (Stage.GENERATION in p.stages[j])


def _can_host(p: Plain, chosen: tuple[int, ...], kind: int, members: tuple[int, ...], apart: Conflicts) -> bool:
    if any(p.kind[i][chosen[i]] != kind for i in members):
        return False
    if any(pair in apart or must_be_apart(p, *pair) for pair in itertools.combinations(members, 2)):
        return False
    resident = sum(p.resident[i][chosen[i]] for i in members)
    return resident + max((p.active[i][chosen[i]] for i in members), default=0.0) <= p.capacity[kind]


def _fits(p: Plain, chosen: tuple[int, ...], apart: Conflicts) -> bool:
    """Whether the devices that holders need add up over the nodes.

    What a device can host stays hostable with a holder less, so only maximal patterns count, and "at least n".
    """
    needed = tuple(p.n[i][chosen[i]] for i in p.holders)
    ways: dict[tuple[int, int, float], set[tuple[int, ...]]] = {}
    nodes = [(*node, host) for node, host in zip(p.nodes, p.hosts, strict=True)]
    for kind, size, host in set(nodes):
        patterns = list(_maximal_patterns(p, chosen, kind, apart))
        hosted = _largest(
            tuple(sum(i in pattern for pattern in on) // p.q[i][chosen[i]] * p.q[i][chosen[i]] for i in p.holders)
            for on in itertools.combinations_with_replacement(patterns, size)
        )
        ways[kind, size, host] = _largest(part for way in hosted for part in _on_host(p, chosen, way, host))
    most = [tuple(max(way[i] for way in ways[node]) for i in p.holders) for node in nodes]
    reached = {(0,) * len(needed)}
    for at, node in enumerate(nodes):
        missing = [n - sum(later[i] for later in most[at + 1 :]) for i, n in enumerate(needed)]
        sums = (tuple(map(min, map(add, u, v), needed)) for u in reached for v in ways[node])
        reached = _largest(total for total in sums if all(map(ge, total, missing)))
    return needed in reached


def _on_host(p: Plain, chosen: tuple[int, ...], way: tuple[int, ...], host: float) -> Iterator[tuple[int, ...]]:
    """The parts of what a node can host by its devices that its host has room for too."""
    sizes = [p.host[i][row] for i, row in enumerate(chosen)]
    steps = [
        range(0, most + 1, p.q[i][chosen[i]]) if size else (most,)
        for i, (most, size) in enumerate(zip(way, sizes, strict=True))
    ]
    for part in itertools.product(*steps):
        if sum(map(mul, part, sizes)) <= host:
            yield part


def _maximal_patterns(p: Plain, chosen: tuple[int, ...], kind: int, apart: Conflicts) -> Iterator[tuple[int, ...]]:
    kept: list[tuple[int, ...]] = []
    for count in range(len(p.holders), -1, -1):
        for members in itertools.combinations(p.holders, count):
            if _can_host(p, chosen, kind, members, apart) and not any(set(members) <= set(other) for other in kept):
                kept.append(members)
                yield members


def _largest(vectors: Iterator[tuple[int, ...]]) -> set[tuple[int, ...]]:
    kept: list[tuple[int, ...]] = []
    for vector in sorted(set(vectors), reverse=True):
        if not any(all(map(ge, other, vector)) for other in kept):
            kept.append(vector)
    return set(kept)


def literal(problem: Problem) -> float:
    """L_step of the best plan over every set of devices of every holder; for pools of a few devices."""
    p = plain(problem)
    node_of = [at for at, (_, size) in enumerate(p.nodes) for _ in range(size)]
    best = float("inf")
    for chosen in itertools.product(*(range(len(rows)) for rows in p.n)):
        for placed in itertools.product(*(_device_sets(p, i, row, node_of) for i, row in enumerate(chosen))):
            best = min(best, _literal_length(p, chosen, placed, node_of))
    return best


def _device_sets(p: Plain, holder: int, row: int, node_of: list[int]) -> list[frozenset[int]]:
    usable = [d for d, node in enumerate(node_of) if p.nodes[node][0] == p.kind[holder][row]]
    pinned = p.pinned[holder]
    if pinned is not None:
        usable = [device for device in usable if device in pinned]
    sets = itertools.combinations(usable, p.n[holder][row])
    q = p.q[holder][row]
    return [frozenset(s) for s in sets if all(sum(node_of[d] == node for d in s) % q == 0 for node in set(node_of))]


def _literal_length(p: Plain, chosen: tuple[int, ...], placed: tuple[frozenset[int], ...], node_of: list[int]) -> float:
    for device, node in enumerate(node_of):
        members = tuple(i for i in p.holders if device in placed[i])
        if not _can_host(p, chosen, p.nodes[node][0], members, frozenset()):
            return float("inf")
    for node, host in enumerate(p.hosts):
        on = [d for d, at in enumerate(node_of) if at == node]
        if sum(p.host[i][row] * len(placed[i].intersection(on)) for i, row in enumerate(chosen)) > host:
            return float("inf")
    shared = frozenset(pair for pair in itertools.combinations(p.holders, 2) if placed[pair[0]] & placed[pair[1]])
    return length(p, chosen, shared)
