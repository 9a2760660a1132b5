"""The placement of candidates decided exactly, as an integer program over patterns (`scipy.optimize.milp`, HiGHS).

Unknown: for each node, how many devices host each pattern. A holder's devices add up to what its candidate needs, in each
node to a multiple of its quantum, and what they offload fits on the node's host. Exact for pools of few nodes; above, nodes
are cut into units of the largest quantum and put together, which finds placements and refutes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from nereus.planner.placement import Item, NodeState, Placement, Site
from nereus.planner.problem import Floats

_Program: TypeAlias = tuple[Floats, Floats, Floats]

MOST_NODES = 12
"""Nodes that are told apart; the program grows with them, and on larger pools `fill` has found a placement each time."""


def relaxation_feasible(items: Sequence[Item], sites: Sequence[Site], allowed: Sequence[bool]) -> bool:
    """Whether the candidates fit if devices could be cut up and nodes were one: False proves that there is no placement."""
    states = tuple(state for state, _ in sites)
    patterns, pool = _patterns(items, states, allowed), (_pinned_totals(states), sum(left for _, left in sites))
    return _solve(_program(items, [pool], patterns, quanta=False), whole=False) is not None


def pack(items: Sequence[Item], sites: Sequence[Site], allowed: Sequence[bool]) -> Placement | None:
    """A placement, or None; for at most `MOST_NODES` nodes None is a proof that there is none."""
    states = tuple(state for state, _ in sites)
    patterns = _patterns(items, states, allowed)
    if len(states) <= MOST_NODES:
        nodes = [(dict(state), left) for state, left in sites]
        return _read(_solve(_program(items, nodes, patterns, quanta=True)), states, patterns)
    found = _pack_units(items, states, patterns)
    return found if found is not None and _hosts_hold(items, sites, found) else None


def _hosts_hold(items: Sequence[Item], sites: Sequence[Site], found: Placement) -> bool:
    """Whether what a placement offloads fits on every node."""
    for state, (_, left) in zip(found, sites, strict=True):
        if sum(count * item.host_bytes for pattern, count in state for item in items if pattern & item.bit) > left:
            return False
    return True


def _pack_units(items: Sequence[Item], states: Placement, patterns: list[int]) -> Placement | None:
    """Placement in units of the largest quantum: a unit hosts one pattern as a whole."""
    unit = max(item.quantum for item in items)
    if any(item.num_devices % unit or unit % item.quantum for item in items):
        return None
    totals: dict[int, int] = {}
    for state in states:
        for pattern, count in state:
            totals[pattern] = totals.get(pattern, 0) + count // unit
    counts = [Item(item.bit, item.num_devices // unit, 1) for item in items]
    solved = _solve(_program(counts, [(totals, 0.0)], patterns, quanta=False))
    if solved is None:
        return None
    left = {pattern: round(x) for pattern, x in zip(patterns, solved, strict=False)}
    bits = sum(item.bit for item in items)
    return tuple(_take_units(state, unit, left, bits) for state in states)


def _take_units(state: NodeState, unit: int, left: dict[int, int], bits: int) -> NodeState:
    """The patterns that the units of one node host, taken off what is left to host."""
    found: dict[int, int] = {}
    for base, count in state:
        units = count // unit
        for pattern in [p for p in left if p & ~bits == base]:
            taken = min(units, left[pattern])
            left[pattern] -= taken
            units -= taken
            if taken:
                found[pattern] = found.get(pattern, 0) + taken * unit
        idle = count - count // unit * unit + units * unit
        if idle:
            found[base] = found.get(base, 0) + idle
    return tuple(sorted(found.items()))


def _patterns(items: Sequence[Item], states: Placement, allowed: Sequence[bool]) -> list[int]:
    """Patterns that a device can host: sets of the items on top of what pinned holders are there."""
    bits = sum(item.bit for item in items)
    bases = sorted({pattern for state in states for pattern, _ in state})
    return [mask for mask in range(len(allowed)) if allowed[mask] and mask & ~bits in bases]


def _pinned_totals(states: Placement) -> dict[int, int]:
    totals: dict[int, int] = {}
    for state in states:
        for pattern, count in state:
            totals[pattern] = totals.get(pattern, 0) + count
    return totals


def _program(
    items: Sequence[Item], nodes: Sequence[tuple[dict[int, int], float]], patterns: list[int], *, quanta: bool
) -> _Program:
    """Rows over (node, pattern) counts, then (node, item) numbers of quanta: matrix, least and most of each row."""
    bits = sum(item.bit for item in items)
    width = len(patterns)
    columns = len(nodes) * (width + (len(items) if quanta else 0))
    matrix, right, bounded, most = [], [], [], []
    totals, offload = np.zeros((len(items), columns)), _offload(items, patterns)
    for at, (node, left) in enumerate(nodes):
        span = slice(at * width, (at + 1) * width)
        for base in sorted({pattern & ~bits for pattern in patterns}):
            row = np.zeros(columns)
            row[span] = [pattern & ~bits == base for pattern in patterns]
            matrix.append(row)
            right.append(node.get(base, 0))
        for number, item in enumerate(items):
            hosting = [bool(pattern & item.bit) for pattern in patterns]
            totals[number, span] = hosting
            if quanta:
                row = np.zeros(columns)
                row[span] = hosting
                row[len(nodes) * width + at * len(items) + number] = -item.quantum
                matrix.append(row)
                right.append(0)
        if offload.any():
            scale = max(left, float(offload.max()))
            row = np.zeros(columns)
            row[span] = offload / scale
            bounded.append(row)
            most.append(left / scale)
    equal = np.array([*right, *(item.num_devices for item in items)], np.float64)
    least = np.concatenate([equal, np.full(len(most), -np.inf)])
    return np.array([*matrix, *totals, *bounded]), least, np.concatenate([equal, most])


def _offload(items: Sequence[Item], patterns: Sequence[int]) -> Floats:
    """(patterns,) Bytes that one device with a pattern offloads."""
    return np.array([sum(item.host_bytes for item in items if pattern & item.bit) for pattern in patterns], np.float64)


def _solve(program: _Program, *, whole: bool = True) -> Floats | None:
    """Some solution in non-negative (whole) numbers, or None."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # costs a quarter of a second, and is seldom needed

    matrix, least, most = program
    columns = matrix.shape[1]
    found = milp(
        np.zeros(columns),
        constraints=LinearConstraint(matrix, least, most),
        bounds=Bounds(0, np.inf),
        integrality=np.full(columns, int(whole)),
    )
    return np.asarray(found.x) if found.status == 0 else None


def _read(solved: Floats | None, states: Placement, patterns: list[int]) -> Placement | None:
    if solved is None:
        return None
    width = len(patterns)
    counts = [[round(x) for x in solved[at * width : (at + 1) * width]] for at in range(len(states))]
    return tuple(
        tuple((pattern, count) for pattern, count in zip(patterns, of_node, strict=True) if count) for of_node in counts
    )
