"""Placement quanta: in each node a holder's devices are a multiple of its quantum, and that is what its links rest on.

    quantum tp        TP groups lie inside nodes
    tp x ep           EP groups do
    tp x ep x pp      whole EMUs do: pipeline hops stay inside; the replicas of one group in a node share its ways out
    all devices       replicas too
    below tp          TP crosses nodes, in parts of a quantum that each have as many ways out

So one way to run a holder is several candidates, each with its own latency: a coarse quantum has faster links and fewer
places. An `Execution` of a quantum has nodes of that many devices, since no more are promised to be neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd

from nereus.cost.execution import Execution


def inside_nodes(run: Execution, num_nodes: int, *, trains: bool) -> Iterator[tuple[int, Execution]]:
    """(quantum, run) with TP inside nodes; of quanta with the same links the smallest, which has the most places.

    `run` has the largest node of the kind. In a pool of one node all are neighbours whatever the quantum.
    """
    if num_nodes == 1:
        yield run.tp, run
        return
    node, seen = run.hardware.devices_per_node, set()
    sizes = {run.tp << doublings for doublings in range(node.bit_length())} | {run.devices}
    for quantum in sorted(size for size in sizes if size <= node and run.devices % size == 0):
        links = _links(run, quantum, trains=trains)
        if links not in seen:
            seen.add(links)
            yield quantum, _held(run, quantum)


def across_nodes(run: Execution, sizes: Sequence[int]) -> Iterator[tuple[int, Execution]]:
    """(quantum, run) with TP groups over nodes of these sizes, in the largest equal parts that one of each has room for."""
    for quantum in sorted({_part(run.tp, size) for size in sizes}):
        if quantum < run.tp:
            yield quantum, _held(run, quantum)


def lying(run: Execution, in_nodes: Sequence[int], num_nodes: int, *, trains: bool) -> Execution:
    """A way to run with the links that it has where so many of its devices lie in each node, of `num_nodes` of the kind."""
    if any(count % run.tp for count in in_nodes):
        return _held(run, gcd(run.tp, *in_nodes))
    promised = inside_nodes(run, num_nodes, trains=trains)
    *_, held = (held for quantum, held in promised if all(count % quantum == 0 for count in in_nodes))
    return held


def _part(tp: int, size: int) -> int:
    return max(part for part in range(1, min(tp, size) + 1) if tp % part == 0)


def _held(run: Execution, quantum: int) -> Execution:
    return replace(run, hardware=replace(run.hardware, devices_per_node=quantum))


def _links(run: Execution, quantum: int, *, trains: bool) -> tuple[int, ...]:
    """What latency depends on: whether pipeline hops and EP groups stay inside, and with gradients how many replicas do."""
    hops, experts = run.pp > 1 and run.hop_span <= quantum, run.ep > 1 and run.tp * run.ep <= quantum
    if not trains or run.shares == 1:
        return hops, experts
    if run.replica_span <= quantum:
        return hops, experts, -1
    several = run.ep > 1 or run.regime.replicas_inside or run.tp * run.pp <= quantum
    return hops, experts, quantum if several else 0
