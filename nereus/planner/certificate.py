"""Proofs that some candidates cannot be placed together, without placing them.

A device hosts a pattern, a set of holders that fit its memory together and may share. For whole weights y per holder

    sum of y * n  <=  sum over nodes of min(devices * heaviest pattern, sum of y * floor(devices / q) * q)

holds for every placement, so a set of candidates that breaks it for some y has none. What is offloaded bounds the devices
that a node has for a holder, and over all nodes it fits in the memory of the hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nereus.planner.overlap import Pair
from nereus.planner.problem import Bools, Floats, Ints, Pool

_Loads: TypeAlias = npt.NDArray[np.int8]
"""Sums of a few small weights."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What holders need, in many combinations at once: (holders, combinations) in every column.

    A holder that is not decided yet has the smallest values of its rows; one that needs no devices limits nothing.
    """

    num_devices: Ints
    resident_bytes: Floats
    active_bytes: Floats
    quantum: Ints
    host_bytes: Floats

    def only(self, which: Bools) -> Needs:
        """The holders of one device kind; the others need nothing here. `which` has the shape of the columns."""
        return Needs(
            np.where(which, self.num_devices, 0),
            np.where(which, self.resident_bytes, 0.0),
            np.where(which, self.active_bytes, 0.0),
            np.where(which, self.quantum, 1),
            np.where(which, self.host_bytes, 0.0),
        )


def may_fit(needs: Needs, apart: frozenset[Pair], pool: Pool, kind: int) -> Bools:
    """(combinations,) False where weights of 0 and 1 prove that a combination has no placement on the nodes of a kind."""
    members = _members(len(needs.num_devices))
    return _may_fit(needs, apart, pool, kind, members[1:].astype(np.float64), lambda fits: _largest_inside(fits)[1:])


def may_fit_finely(needs: Needs, apart: frozenset[Pair], pool: Pool, kind: int) -> Bools:
    """The same with weights of 0, 1 and 2: for the few combinations that are about to be placed."""
    weights, loads = _fine_weights(len(needs.num_devices))
    return _may_fit(needs, apart, pool, kind, weights, lambda fits: (loads[:, :, None] * fits[:, None, :]).max(0))


def _may_fit(
    needs: Needs, apart: frozenset[Pair], pool: Pool, kind: int, weights: Floats, heaviest: Callable[[Bools], _Loads]
) -> Bools:
    """`weights` is (weights, holders); `heaviest` gives (weights, combinations) of the patterns that fit."""
    fits = fitting_patterns(needs, apart, pool.capacity_bytes[kind])
    offloads = bool(needs.host_bytes.any())
    classes = pool.classes_of_kind[kind]
    sizes = classes if offloads else {(size, 0.0): nodes for size, nodes in pool.sizes_of_kind[kind].items()}
    room = np.zeros((len(weights), needs.num_devices.shape[1]))
    for (size, host), nodes in sizes.items():
        possible = fits
        if len(sizes) > 1:
            possible = fits & (_members(len(needs.quantum)) @ (needs.quantum > size) == 0)
        most = _room(size, host, needs) if offloads else size
        whole = weights @ (most // needs.quantum * needs.quantum).astype(np.float64)
        room += nodes * np.minimum(size * heaviest(possible).astype(np.float64), whole)
    enough = (weights @ needs.num_devices.astype(np.float64) <= room).all(0)
    if offloads:
        enough &= (needs.num_devices * needs.host_bytes).sum(0) <= pool.host_of_kind[kind]
    return np.asarray(enough)


def _largest_inside(fits: Bools) -> _Loads:
    """(patterns, combinations) For each pattern how many holders the largest part of it has that one device can host."""
    num_holders = len(fits).bit_length() - 1
    largest: _Loads = _members(num_holders).sum(1, dtype=np.int8)[:, None] * fits
    for holder in range(num_holders):
        without, having = largest.reshape(-1, 2, 1 << holder, fits.shape[1]).transpose(1, 0, 2, 3)
        np.maximum(without, having, out=having)
    return largest


def _room(size: int, host_bytes: float, needs: Needs) -> Ints:
    """(holders, combinations) Devices of one node that a holder can have by what it offloads."""
    most = np.full(needs.num_devices.shape, size)
    held = needs.host_bytes > 0
    most[held] = np.minimum(size, host_bytes // needs.host_bytes[held])
    return most


def fitting_patterns(needs: Needs, apart: frozenset[Pair], capacity: float) -> Bools:
    """(patterns, combinations) Which sets of holders one device can host."""
    num_holders, count = needs.num_devices.shape
    active = np.zeros((1 << num_holders, count))
    for holder, column in enumerate(needs.active_bytes):
        bit = 1 << holder
        np.maximum(active[:bit], column, out=active[bit : 2 * bit])
    resident = _members(num_holders).astype(np.float64) @ needs.resident_bytes
    fits = (resident + active <= capacity) & ~_barred(num_holders, apart)[:, None]
    fits[0] = True
    return np.asarray(fits)


def allowed_patterns(
    needs: Needs, of_kind: tuple[bool, ...], apart: frozenset[Pair], capacity_bytes: float
) -> tuple[bool, ...]:
    """By pattern, whether one device of a kind can host it, for the first combination and its holders of that kind."""
    foreign = _members(len(of_kind))[:, ~np.array(of_kind)].any(1)
    allowed = fitting_patterns(needs, apart, capacity_bytes)[:, 0] & ~foreign
    return tuple(allowed.tolist())


@cache
def _barred(num_holders: int, apart: frozenset[Pair]) -> Bools:
    """(patterns,) Which patterns have two holders that must be apart."""
    pairs = [1 << a | 1 << b for a, b in apart]
    return np.array([any(pattern & pair == pair for pair in pairs) for pattern in range(1 << num_holders)])


@cache
def _members(num_holders: int) -> _Loads:
    """(patterns, holders) 1 where a pattern has a holder."""
    return np.array([[p >> holder & 1 for holder in range(num_holders)] for p in range(1 << num_holders)], np.int8)


@cache
def _fine_weights(num_holders: int) -> tuple[Floats, _Loads]:
    """(weights, holders) All of 0, 1 and 2 but nothing but zeros; (patterns, weights) what a pattern weighs."""
    weights = np.array([w for w in product(range(3), repeat=num_holders) if any(w)])
    return weights.astype(np.float64), (_members(num_holders) @ weights.T).astype(np.int8)
