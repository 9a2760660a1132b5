"""What a transition is made of: operations, and the collectives that each one is compiled to.

    Primitive -> Op: copies (local) + exchanges (AllGather | Pairwise) -> Program: the ops of one endpoint

All of it is printable data; nothing here knows a tensor or a process group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.moves import Move
from nereus.layout.tensors import CanonicalTensor

TRANSFER = "transfer"
COMPUTE = "compute"
"""The lanes that own communicators: a process group belongs to one lane, and to the one thread that runs it."""


class GroupKey(NamedTuple):
    """A communicator: its sorted members and the lane that uses it."""

    members: tuple[EndpointId, ...]
    lane: str

    @classmethod
    def of(cls, endpoints: Iterable[EndpointId], lane: str) -> GroupKey:
        return cls(tuple(sorted(set(endpoints))), lane)


@dataclass(frozen=True, slots=True)
class Part:
    """A box that one member contributes to an AllGather."""

    tensor: CanonicalTensor
    box: Box
    unit: UnitId
    """The contributor's unit, which is read."""

    @property
    def num_bytes(self) -> int:
        return self.box.volume * self.tensor.item_bytes


@dataclass(frozen=True, slots=True)
class AllGather:
    """Every member contributes its parts as one contiguous buffer, and writes those of all others."""

    group: GroupKey
    parts: tuple[tuple[Part, ...], ...]
    """What each member contributes, in the order of group.members."""
    targets: tuple[UnitId, ...]
    """The unit that each member writes, in the order of group.members."""

    @property
    def num_bytes(self) -> int:
        """Bytes received, over all members."""
        return sum(part.num_bytes for parts in self.parts for part in parts) * (len(self.group.members) - 1)


@dataclass(frozen=True, slots=True)
class Pairwise:
    """Each pair of endpoints exchanges one contiguous buffer each way."""

    group: GroupKey
    moves: tuple[Move, ...]

    @property
    def num_bytes(self) -> int:
        return sum(move.num_bytes for move in self.moves)


Exchange = AllGather | Pairwise


@dataclass(frozen=True, slots=True)
class Op:
    """One primitive (or a weight sync), compiled to local copies and collectives."""

    id: str
    primitive: str
    stage: str
    makes: tuple[Emu, ...]
    """Units that are opened when the operation starts."""
    ends: tuple[Emu, ...]
    """Units that end with it: released by a Destroy at once, by others at commit."""
    copies: tuple[Move, ...]
    exchanges: tuple[Exchange, ...]
    after: tuple[str, ...]
    """Operations that must have completed before this one starts."""

    @property
    def members(self) -> tuple[EndpointId, ...]:
        """Every endpoint that takes part, sorted."""
        endpoints = {e for emu in (*self.makes, *self.ends) for e in emu.endpoints}
        endpoints |= {site.endpoint for move in self.copies for site in (move.source, move.target)}
        endpoints |= {e for exchange in self.exchanges for e in exchange.group.members}
        return tuple(sorted(endpoints))

    @property
    def num_bytes(self) -> int:
        """Bytes that cross between endpoints."""
        return sum(exchange.num_bytes for exchange in self.exchanges)

    def seen_by(self, endpoint: EndpointId) -> Op:
        """The part of the operation that concerns one endpoint."""
        return Op(
            id=self.id,
            primitive=self.primitive,
            stage=self.stage,
            makes=tuple(emu for emu in self.makes if endpoint in emu.endpoints),
            ends=tuple(emu for emu in self.ends if endpoint in emu.endpoints),
            copies=tuple(move for move in self.copies if move.target.endpoint == endpoint),
            exchanges=tuple(x for x in (_exchange_seen_by(x, endpoint) for x in self.exchanges) if x is not None),
            after=self.after,
        )


def _exchange_seen_by(exchange: Exchange, endpoint: EndpointId) -> Exchange | None:
    if endpoint not in exchange.group.members:
        return None
    if isinstance(exchange, AllGather):
        return exchange
    mine = tuple(m for m in exchange.moves if endpoint in (m.source.endpoint, m.target.endpoint))
    return Pairwise(exchange.group, mine)


@dataclass(frozen=True, slots=True)
class Program:
    """All that one endpoint needs to know before a transition, so that installing it moves nothing."""

    epoch: int
    endpoint: EndpointId
    groups: tuple[GroupKey, ...]
    """Communicators to have ready, in one order that is the same everywhere (so that making them cannot deadlock)."""
    ops: tuple[Op, ...]
    states: dict[str, StateSpec] = field(default_factory=dict)
    """The logical state of every stage that the program opens units of."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The transition DAG from one collection of EMUs to another."""

    ops: tuple[Op, ...]
    """In dispatch order, which is topological."""
    result: tuple[Emu, ...]
    """The EMUs of the changed model-stages after it."""

    @property
    def moving(self) -> tuple[Op, ...]:
        """What runs before the proof, in the order of submission on every endpoint's transfer lane."""
        held = {op.id for op in self.held}
        return tuple(op for op in self.ops if op.id not in held)

    @property
    def held(self) -> tuple[Op, ...]:
        """Destroys that nothing waits for: they run after the proof, so that until then the old units stand."""
        awaited = {before for op in self.ops for before in op.after}
        return tuple(op for op in self.ops if op.primitive == "Destroy" and op.id not in awaited)

    @property
    def num_bytes(self) -> int:
        return sum(op.num_bytes for op in self.ops)

    @property
    def counts(self) -> dict[str, int]:
        """How many of each primitive."""
        counts: dict[str, int] = {}
        for op in self.ops:
            counts[op.primitive] = counts.get(op.primitive, 0) + 1
        return counts


def program_for(
    endpoint: EndpointId,
    epoch: int,
    ops: Iterable[Op],
    compute_groups: Iterable[GroupKey],
    states: Mapping[str, StateSpec],
) -> Program:
    """What one endpoint has to install: its part of the ops, and every communicator that they or its units use."""
    mine = tuple(op.seen_by(endpoint) for op in ops if endpoint in op.members)
    groups = {x.group for op in mine for x in op.exchanges}
    groups |= {key for key in compute_groups if endpoint in key.members}
    opened = {op.stage for op in mine if op.makes}
    return Program(epoch, endpoint, tuple(sorted(groups)), mine, {stage: states[stage] for stage in sorted(opened)})
