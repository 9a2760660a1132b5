"""The digest of an EMU's logical state: additive over boxes, so nothing has to be gathered to prove a movement.

    endpoint: box -> two sums mod 2^64      controller: boxes of all ranks -> one pair of sums per tensor

Replicas within a unit (norms under TP, shared kv heads, tied embeddings) are compared, then counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import NamedTuple

from nereus.errors import DigestMismatch
from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import OPTIMIZER_KINDS, TensorRef

CUTS = 4096
"""Ways in which tensors are cut that are remembered: the layers of a model share theirs, and a proof has hundreds."""

Sums = tuple[int, int]
"""Two hash sums modulo 2^64, under two seeds."""

Digest = dict[TensorRef, Sums]
"""The digest of a unit, by tensor. Equal digests mean equal logical state, bit for bit."""


class BoxDigest(NamedTuple):
    """The sums over the elements of one box: a mix of (element index in the canonical tensor, element bits)."""

    ref: TensorRef
    box: Box
    sums: Sums


def logical_digest(digests: Iterable[BoxDigest], shapes: Mapping[TensorRef, tuple[int, ...]]) -> Digest:
    """Combine what the endpoints of one unit hashed.

    Raises DigestMismatch if two replicas of a box differ, or if the boxes of a tensor do not add up to its elements.
    """
    boxes: dict[TensorRef, dict[Box, Sums]] = {ref: {} for ref in shapes}
    for ref, box, sums in digests:
        if ref not in boxes:
            raise DigestMismatch(f"{ref} is hashed, and is no part of the logical state")
        known = boxes[ref].setdefault(box, sums)
        if known != sums:
            raise DigestMismatch(f"replicas of {ref} {box.low}:{box.high} within one unit differ")
    for ref, parts in boxes.items():
        held = _disjoint_volume(tuple(parts))
        if held is None:
            raise DigestMismatch(f"{ref}: boxes of one unit overlap in part")
        if held != prod(shapes[ref]):
            raise DigestMismatch(f"{ref}: {held} of {prod(shapes[ref])} elements are held")
    return {ref: _add(parts.values()) for ref, parts in boxes.items()}


def unit_digests(
    boxes: Mapping[UnitId, Sequence[BoxDigest]], shapes: Mapping[TensorRef, tuple[int, ...]], *, sharded: bool
) -> dict[UnitId, Digest]:
    """The digest of each replica of a model-stage, from what its endpoints hashed.

    Where the optimizer state is `sharded` over the replicas (ZeRO-1), what all of them keep of it counts for each. Raises
    DigestMismatch as `logical_digest` does.
    """
    shared = [b for kept in boxes.values() for b in kept if sharded and b.ref.kind in OPTIMIZER_KINDS]
    own = {u: [b for b in kept if not (sharded and b.ref.kind in OPTIMIZER_KINDS)] for u, kept in boxes.items()}
    return {unit: logical_digest([*kept, *shared], shapes) for unit, kept in own.items()}


@lru_cache(maxsize=CUTS)
def _disjoint_volume(boxes: tuple[Box, ...]) -> int | None:
    """Elements of boxes that have none in common; None if some have."""
    if any(a.intersect(b) for a, b in combinations(boxes, 2)):
        return None
    return sum(box.volume for box in boxes)


def _add(sums: Iterable[Sums]) -> Sums:
    first = second = 0
    for a, b in sums:
        first, second = (first + a) % 2**64, (second + b) % 2**64
    return first, second
