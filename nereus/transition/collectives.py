"""The collectives that operations are compiled to: communicators, AllGathers, and exchanges in pairs.

    moves -> AllGather (what every member needs) | Pairwise (what goes from one to another)

All of it is printable data; nothing here knows a tensor or a process group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, Site, Tensors, UnitId, by_number
from nereus.layout.moves import Move
from nereus.layout.tensors import TensorRef

TRANSFER = "transfer"
COMPUTE = "compute"
"""The lanes that own communicators: a process group belongs to one lane, and to the one thread that runs it."""


class GroupKey(NamedTuple):
    """A communicator: its members, sorted by number, and the lane that uses it."""

    members: tuple[EndpointId, ...]
    lane: str

    @classmethod
    def of(cls, endpoints: Iterable[EndpointId], lane: str) -> GroupKey:
        return cls(tuple(sorted(set(endpoints), key=by_number)), lane)


class Part(NamedTuple):
    """A box of some tensors that one member contributes to an AllGather."""

    tensors: Tensors
    box: Box
    unit: UnitId
    """The contributor's unit, which is read."""

    @property
    def num_bytes(self) -> int:
        return self.box.volume * self.tensors[0].item_bytes * len(self.tensors)


@dataclass(frozen=True, slots=True)
class AllGather:
    """Every member contributes its parts as one contiguous buffer, and writes those of all others."""

    group: GroupKey
    parts: tuple[tuple[Part, ...], ...]
    """What each member contributes, in the order of group.members."""
    targets: tuple[UnitId, ...]
    """The unit that each member writes, in the order of group.members."""

    @property
    def wave(self) -> int:
        """It reads what was there before the operation."""
        return 0

    @property
    def num_bytes(self) -> int:
        """Bytes received, over all members."""
        return sum(part.num_bytes for parts in self.parts for part in parts) * (len(self.group.members) - 1)

    @property
    def sources(self) -> frozenset[Site]:
        """Where it reads."""
        contributed = zip(self.group.members, self.parts, strict=True)
        return frozenset(Site(member, part.unit) for member, parts in contributed for part in parts)

    @property
    def sinks(self) -> frozenset[Site]:
        """Where it writes."""
        return frozenset(map(Site, self.group.members, self.targets))

    def of_tensors(self, refs: frozenset[TensorRef]) -> AllGather | None:
        """The part of it that concerns some tensors; None if nothing does."""
        chosen = tuple(tuple(p for part in parts if (p := of_tensors(part, refs))) for parts in self.parts)
        return replace(self, parts=chosen) if any(chosen) else None


@dataclass(frozen=True, slots=True)
class Pairwise:
    """Each pair of endpoints exchanges one contiguous buffer each way."""

    group: GroupKey
    moves: tuple[Move, ...]

    @property
    def wave(self) -> int:
        """Exchanges of a later wave read what those of an earlier one have brought."""
        return self.moves[0].wave

    @property
    def num_bytes(self) -> int:
        return sum(move.num_bytes for move in self.moves)

    @property
    def sources(self) -> frozenset[Site]:
        """Where it reads."""
        return frozenset(move.source for move in self.moves)

    @property
    def sinks(self) -> frozenset[Site]:
        """Where it writes."""
        return frozenset(move.target for move in self.moves)

    def of_tensors(self, refs: frozenset[TensorRef]) -> Pairwise | None:
        """The part of it that concerns some tensors; None if nothing does."""
        chosen = tuple(m for move in self.moves if (m := of_tensors(move, refs)))
        return replace(self, moves=chosen) if chosen else None


Exchange = AllGather | Pairwise

Carrier = TypeVar("Carrier", Move, Part)


def of_tensors(carrier: Carrier, refs: frozenset[TensorRef]) -> Carrier | None:
    """The part of a move, or of a contribution, that concerns some tensors; None if nothing does."""
    kept = tuple(tensor for tensor in carrier.tensors if tensor.ref in refs)
    return carrier._replace(tensors=kept) if kept else None


def exchange_seen_by(exchange: Exchange, endpoint: EndpointId) -> Exchange | None:
    """The part of an exchange that one endpoint takes part in; None if it does not."""
    if endpoint not in exchange.group.members:
        return None
    if isinstance(exchange, AllGather):
        return exchange
    mine = tuple(m for m in exchange.moves if endpoint in (m.source.endpoint, m.target.endpoint))
    return Pairwise(exchange.group, mine)
