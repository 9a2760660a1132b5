"""The sharding inside one EMU, and the order of its ranks.

A layout is the paper's T = (tp, pp); `fsdp` and `ep` serve FSDP frameworks and MoE models. Ranks are numbered with tp
fastest, so that the devices of one TP group are neighbours:

    rank = ((pp * ep_size + ep) * fsdp_size + fsdp) * tp_size + tp
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from nereus.errors import LayoutError


class OptimizerShard(NamedTuple):
    """Which part of the optimizer state a DP replica keeps: ZeRO-1 shards it over the replicas of a model-stage."""

    part: int = 0
    parts: int = 1
    """Replicas that share it; 1 where each keeps all of its own."""


UNSHARDED = OptimizerShard()


class Coordinate(NamedTuple):
    """The position of one rank inside an EMU."""

    pp: int
    ep: int
    fsdp: int
    tp: int


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """Degrees of parallelism inside one EMU; their product is its number of devices."""

    tp: int = 1
    pp: int = 1
    fsdp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for axis in ("tp", "pp", "fsdp", "ep"):
            degree = getattr(self, axis)
            if degree < 1:
                raise LayoutError(f"{axis}: {degree} is not a degree of parallelism; it must be 1 or more")

    @property
    def size(self) -> int:
        """Devices of one EMU with this layout."""
        return self.tp * self.pp * self.fsdp * self.ep

    def coordinate(self, rank: int) -> Coordinate:
        """The coordinate of `rank`, 0 <= rank < size."""
        if not 0 <= rank < self.size:
            raise LayoutError(f"rank {rank} is outside layout {self} of {self.size} ranks")
        rank, tp = divmod(rank, self.tp)
        rank, fsdp = divmod(rank, self.fsdp)
        pp, ep = divmod(rank, self.ep)
        return Coordinate(pp, ep, fsdp, tp)

    def rank(self, *, pp: int = 0, ep: int = 0, fsdp: int = 0, tp: int = 0) -> int:
        """The rank at a coordinate; inverse of `coordinate`."""
        return ((pp * self.ep + ep) * self.fsdp + fsdp) * self.tp + tp

    def common(self, other: Layout) -> Layout:
        """The largest layout into which both can be split: the paper's T_sub, the gcd per axis (section 6)."""
        return Layout(gcd(self.tp, other.tp), gcd(self.pp, other.pp), gcd(self.fsdp, other.fsdp), gcd(self.ep, other.ep))

    def divides(self, other: Layout) -> bool:
        """Whether a unit of layout `other` can be split into units of this layout."""
        return self.common(other) == self

    def __str__(self) -> str:
        extra = "".join(f" {axis}{degree}" for axis, degree in (("fsdp", self.fsdp), ("ep", self.ep)) if degree > 1)
        return f"tp{self.tp} pp{self.pp}{extra}"
