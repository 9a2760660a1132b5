"""Which devices take the places of a plan that says where its model-stages lie: those that have them already, if they can.

Devices of a node are alike, and so are nodes of one size: exchanging them changes neither latency nor memory. Of all such
exchanges the one is taken under which most model-stages find a device that holds them now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

MOST_NODES_EXCHANGED = 32
"""Above, nodes keep their places: pairing them takes one assignment for each pair of nodes."""


def settled(
    places: Mapping[str, Sequence[int]], node_of: Sequence[int], held: Mapping[str, AbstractSet[int]]
) -> dict[str, tuple[int, ...]]:
    """For each model-stage its positions after the exchange, node by node.

    `places` are the positions that the plan gives it, `held` those where it is now, `node_of` says by position the node.
    """
    planned = {p: {stage for stage, places_ in places.items() if p in places_} for p in range(len(node_of))}
    now = {p: {stage for stage in places if p in held.get(stage, ())} for p in range(len(node_of))}
    nodes: dict[int, list[int]] = {}
    for position, node in enumerate(node_of):
        nodes.setdefault(node, []).append(position)
    moved = _exchange(list(nodes.values()), planned, now)
    order = {position: at for at, position in enumerate(sorted(moved.values(), key=lambda p: (node_of[p], p)))}
    return {stage: tuple(sorted((moved[p] for p in taken), key=order.__getitem__)) for stage, taken in places.items()}


def _exchange(
    nodes: Sequence[Sequence[int]], planned: Mapping[int, AbstractSet[str]], now: Mapping[int, AbstractSet[str]]
) -> dict[int, int]:
    """Planned position -> position."""
    pairs = {at: at for at in range(len(nodes))}
    if len(nodes) <= MOST_NODES_EXCHANGED:
        kept = np.array([[_kept(a, b, planned, now) if len(a) == len(b) else -np.inf for b in nodes] for a in nodes])
        pairs = _paired(np.where(np.isfinite(kept), kept, -1e9))
    moved = {}
    for one, other in pairs.items():
        devices = _paired(_stays(nodes[one], nodes[other], planned, now))
        moved.update({nodes[one][a]: nodes[other][b] for a, b in devices.items()})
    return moved


def _kept(
    one: Sequence[int], other: Sequence[int], planned: Mapping[int, AbstractSet[str]], now: Mapping[int, AbstractSet[str]]
) -> float:
    stays = _stays(one, other, planned, now)
    return float(sum(stays[a, b] for a, b in _paired(stays).items()))


def _stays(
    one: Sequence[int], other: Sequence[int], planned: Mapping[int, AbstractSet[str]], now: Mapping[int, AbstractSet[str]]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(places of one node, devices of the other) How many model-stages are there already."""
    return np.array([[float(len(planned[a] & now[b])) for b in other] for a in one])


def _paired(gain: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> dict[int, int]:
    """The assignment with the largest total gain; of equal ones that which exchanges least."""
    from scipy.optimize import linear_sum_assignment  # costs a quarter of a second, and is seldom needed

    rows, columns = linear_sum_assignment(gain + 1e-6 * np.eye(len(gain)), maximize=True)
    return dict(zip(rows.tolist(), columns.tolist(), strict=True))
