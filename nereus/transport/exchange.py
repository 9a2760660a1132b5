"""The exchanges of one operation as one endpoint sees them: which buffers it sends, receives and gathers.

    pack sends -> post every receive and send -> gathers -> wait -> unpack

All buffers of an operation live at once, so that its exchanges run at the same time; their size is known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nereus.layout.catalog import EndpointId
from nereus.transition.ops import AllGather, GroupKey, Op, Pairwise
from nereus.transport.communicator import Batch, Communicator
from nereus.transport.communicators import Communicators
from nereus.transport.packing import Item, pack, unpack, wire_bytes
from nereus.transport.ports import ShardStore

TAG = 1
"""One tag for all messages: those of a pair of endpoints arrive in the order in which both ends walk the exchanges."""


@dataclass(frozen=True, slots=True)
class Message:
    """One contiguous buffer between this endpoint and a peer."""

    peer: EndpointId
    items: tuple[Item, ...]

    @property
    def num_bytes(self) -> int:
        return wire_bytes(self.items)


@dataclass(frozen=True, slots=True)
class PairExchange:
    """What this endpoint sends to and receives from each peer of one Pairwise exchange."""

    group: GroupKey
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]

    @classmethod
    def of(cls, exchange: Pairwise, me: EndpointId) -> PairExchange:
        sends: dict[EndpointId, list[Item]] = {}
        receives: dict[EndpointId, list[Item]] = {}
        for move in exchange.moves:
            if move.source.endpoint == me:
                sends.setdefault(move.target.endpoint, []).append(Item(move.source.unit, move.tensor, move.box))
            elif move.target.endpoint == me:
                receives.setdefault(move.source.endpoint, []).append(Item(move.target.unit, move.tensor, move.box))
        return cls(exchange.group, _messages(sends), _messages(receives))


@dataclass(frozen=True, slots=True)
class Gather:
    """One AllGather: a message of every member; this endpoint's own is packed, the others are unpacked."""

    group: GroupKey
    messages: tuple[Message, ...]

    @classmethod
    def of(cls, exchange: AllGather, me: EndpointId) -> Gather:
        members = exchange.group.members
        target = exchange.targets[members.index(me)]
        return cls(
            exchange.group,
            tuple(
                Message(member, tuple(Item(part.unit if member == me else target, part.tensor, part.box) for part in parts))
                for member, parts in zip(members, exchange.parts, strict=True)
            ),
        )

    @property
    def is_even(self) -> bool:
        """Whether all members contribute as many bytes."""
        return len({message.num_bytes for message in self.messages}) == 1

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the members' buffers, twice where the backend gathers them: it lays them out in one of its own first."""
        return sum(message.num_bytes for message in self.messages) * (2 if self.is_even else 1)

    def run(self, communicator: Communicator, buffers: list[torch.Tensor], me: EndpointId) -> None:
        """One allgather when all contribute as much, else a broadcast of each member that contributes."""
        if self.is_even:
            communicator.all_gather(buffers, buffers[communicator.rank_of(me)])
            return
        for message, buffer in zip(self.messages, buffers, strict=True):
            if message.items:
                communicator.broadcast(buffer, message.peer)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """All exchanges of one operation that this endpoint takes part in."""

    me: EndpointId
    pairs: tuple[PairExchange, ...]
    gathers: tuple[Gather, ...]

    @classmethod
    def of(cls, op: Op, me: EndpointId) -> Exchanges:
        """The part of `op` that `me` takes part in, in the order of the operation."""
        mine = [exchange for exchange in op.exchanges if me in exchange.group.members]
        return cls(
            me,
            tuple(PairExchange.of(exchange, me) for exchange in mine if isinstance(exchange, Pairwise)),
            tuple(Gather.of(exchange, me) for exchange in mine if isinstance(exchange, AllGather)),
        )

    @property
    def received_bytes(self) -> int:
        """Bytes that come from other endpoints."""
        gathered = (m for gather in self.gathers for m in gather.messages if m.peer != self.me)
        return sum(m.num_bytes for m in (*gathered, *(m for pair in self.pairs for m in pair.receives)))

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers, which live at the same time."""
        paired = sum(m.num_bytes for pair in self.pairs for m in (*pair.sends, *pair.receives))
        return paired + sum(gather.buffer_bytes for gather in self.gathers)

    def run(self, store: ShardStore, communicators: Communicators) -> None:
        """Exchange everything; returns when all boxes have landed. The caller holds `buffer_bytes` in the ledger."""
        device = communicators.device
        arriving: list[_Filled] = []
        batches: list[Batch] = []
        for pair in self.pairs:
            received = [(message, _buffer(message, device)) for message in pair.receives]
            sent = [(message, _packed(store, message, device)) for message in pair.sends]
            batches.append(_post(communicators.get(pair.group), received, sent))
            arriving += received
        for gather in self.gathers:
            filled = [(m, _packed(store, m, device) if m.peer == self.me else _buffer(m, device)) for m in gather.messages]
            gather.run(communicators.get(gather.group), [buffer for _, buffer in filled], self.me)
            arriving += [(message, buffer) for message, buffer in filled if message.peer != self.me]
        for batch in batches:
            batch.finish()
        for message, buffer in arriving:
            unpack(store, message.items, buffer)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


_Filled = tuple[Message, torch.Tensor]


def _post(communicator: Communicator, received: list[_Filled], sent: list[_Filled]) -> Batch:
    """Post all messages of one exchange: receives first, so that no send waits for one."""
    with communicator.batch() as batch:
        for message, buffer in received:
            batch.recv(buffer, message.peer, TAG)
        for message, buffer in sent:
            batch.send(buffer, message.peer, TAG)
    return batch


def _messages(items: dict[EndpointId, list[Item]]) -> tuple[Message, ...]:
    return tuple(Message(peer, tuple(listed)) for peer, listed in sorted(items.items()))


def _buffer(message: Message, device: torch.device) -> torch.Tensor:
    return torch.empty(message.num_bytes, dtype=torch.uint8, device=device)


def _packed(store: ShardStore, message: Message, device: torch.device) -> torch.Tensor:
    buffer = _buffer(message, device)
    pack(store, message.items, buffer)
    return buffer
