"""Shapes (tp, pp, dp) of up to four ranks, the pairs of them that are measured, and where each rank sits.

Ranks of the peers are numbered as Megatron and Nereus do, tp fastest and dp slowest.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

NUM_RANKS = 4
"""Rank processes; more would only share the same cores."""


class Seat(NamedTuple):
    """The part of one replica that a rank holds."""

    tp: int
    pp: int
    tp_rank: int
    pp_rank: int


class Shape(NamedTuple):
    """Degrees of tensor, pipeline and data parallelism."""

    tp: int
    pp: int
    dp: int

    @property
    def size(self) -> int:
        """Ranks that hold state."""
        return self.tp * self.pp * self.dp

    def seat(self, rank: int) -> Seat | None:
        """What a rank holds; None for a rank that holds nothing."""
        if rank >= self.size:
            return None
        return Seat(self.tp, self.pp, rank % self.tp, rank // self.tp % self.pp)

    def replica(self, rank: int) -> int:
        """The replica that a rank belongs to."""
        return rank // (self.tp * self.pp)

    def __str__(self) -> str:
        return f"tp{self.tp} pp{self.pp} dp{self.dp}"


Pair = tuple[Shape, Shape]


def all_pairs() -> list[Pair]:
    """Every pair of different shapes."""
    degrees = range(1, NUM_RANKS + 1)
    shapes = [Shape(*each) for each in product(degrees, repeat=3) if Shape(*each).size <= NUM_RANKS]
    return [(source, target) for source in shapes for target in shapes if source != target]


QUICK: tuple[Pair, ...] = tuple(
    (Shape(*source), Shape(*target))
    for source, target in (
        ((1, 1, 1), (1, 1, 4)),
        ((1, 1, 4), (2, 2, 1)),
        ((1, 1, 4), (4, 1, 1)),
        ((4, 1, 1), (1, 1, 4)),
        ((2, 2, 1), (4, 1, 1)),
        ((2, 1, 2), (1, 2, 2)),
        ((1, 4, 1), (4, 1, 1)),
        ((3, 1, 1), (2, 2, 1)),
        ((1, 3, 1), (1, 2, 2)),
        ((2, 1, 2), (1, 1, 3)),
        ((1, 2, 1), (2, 1, 1)),
        ((2, 2, 1), (1, 1, 1)),
    )
)
"""One pair of each sort: replicas that come and go, splits, merges, tp for pp, odd degrees, fewer and more ranks."""
