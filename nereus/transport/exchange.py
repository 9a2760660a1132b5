"""The exchanges of one operation as one endpoint sees them: which messages it sends to and receives from each peer.

    post rounds of one message each way per peer, as many as the buffers hold -> finish the first: unpack -> post the next ..

A message that lies in one run of memory is sent from there or received into there; the rest is packed into staging buffers.
All endpoints post the rounds of a communicator in the same order, and any round fits into the buffers by itself, so the
first round that is not done is under way at both ends of each message: nobody waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import torch

from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, Tensors, UnitId
from nereus.transition.collectives import AllGather, Exchange, GroupKey
from nereus.transition.messages import Message, message_size, messages
from nereus.transition.ops import Op
from nereus.transport.communicator import Batch
from nereus.transport.communicators import Communicators
from nereus.transport.ports import ShardStore
from nereus.transport.staging import Staging

TAG = 1
"""One tag for all messages: those of a pair of endpoints arrive in the order in which both ends walk the exchanges."""

MAX_ROUNDS = 16
"""Rounds under way at once where nothing is staged: enough to hide the latency of a message, few enough to watch."""

Boxes = list[tuple[UnitId, Tensors, Box]]


@dataclass(frozen=True, slots=True)
class Line:
    """All messages between this endpoint and one peer on one communicator."""

    group: GroupKey
    peer: EndpointId
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]

    @property
    def num_rounds(self) -> int:
        return max(len(self.sends), len(self.receives))


@dataclass(frozen=True, slots=True)
class Exchanges:
    """All exchanges of an operation, or of one bucket of it, that this endpoint takes part in."""

    waves: tuple[tuple[Line, ...], ...]
    """Lines of a later wave send what those of an earlier one have received."""

    @classmethod
    def of(cls, op: Op, me: EndpointId) -> Exchanges:
        """The part of `op` that `me` takes part in, in the order of the operation."""
        mine = sorted((x for x in op.exchanges if me in x.group.members), key=lambda exchange: exchange.wave)
        return cls(
            tuple(tuple(_lines(wave, me, op.message_bytes)) for _, wave in groupby(mine, key=lambda exchange: exchange.wave))
        )

    @property
    def received_bytes(self) -> int:
        """Bytes that come from other endpoints."""
        return sum(message_size(message) for wave in self.waves for line in wave for message in line.receives)

    def run(self, store: ShardStore, communicators: Communicators, staging: Staging, meanwhile: Callable[[], None]) -> None:
        """Returns when all boxes have landed. `meanwhile` is called when the first rounds are posted."""
        for wave in self.waves:
            under_way: deque[_Round] = deque()
            for number in range(max(line.num_rounds for line in wave)):
                following = _Round.of(wave, number, store, staging)
                while under_way and (len(under_way) == MAX_ROUNDS or not following.fits(staging)):
                    meanwhile = _once(meanwhile)
                    under_way.popleft().finish(store, staging)
                following.post(store, communicators, staging)
                under_way.append(following)
            meanwhile = _once(meanwhile)
            while under_way:
                under_way.popleft().finish(store, staging)
        _once(meanwhile)


@dataclass(slots=True)
class _Way:
    """One message of a round, and where its bytes are: in the shard itself, or in a staging buffer."""

    line: Line
    message: Message
    where: torch.Tensor | None
    """The bytes in the shard; None where they are not in one run, until a buffer is taken."""
    is_staged: bool

    @classmethod
    def of(cls, line: Line, message: Message, direct: torch.Tensor | None) -> _Way:
        return cls(line, message, direct, direct is None)


@dataclass(slots=True)
class _Round:
    """One message each way for each peer, under way together."""

    receives: list[_Way]
    sends: list[_Way]
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def of(cls, wave: Iterable[Line], number: int, store: ShardStore, staging: Staging) -> _Round:
        receives = [(line, line.receives[number]) for line in wave if number < len(line.receives)]
        sends = [(line, line.sends[number]) for line in wave if number < len(line.sends)]
        return cls(
            [_Way.of(line, message, staging.direct_target(store, message)) for line, message in receives],
            [_Way.of(line, message, staging.direct_source(store, message)) for line, message in sends],
        )

    def fits(self, staging: Staging) -> bool:
        """Whether its staged messages have room beside those under way."""
        received, sent = (
            sum(message_size(way.message) for way in ways if way.is_staged) for ways in (self.receives, self.sends)
        )
        return staging.has_room(received, sent)

    def post(self, store: ShardStore, communicators: Communicators, staging: Staging) -> None:
        """Post all messages: receives first, so that no send waits for one."""
        for way in self.receives:
            if way.is_staged:
                way.where = staging.receiving.take(message_size(way.message))
        for way in self.sends:
            if way.is_staged:
                way.where = staging.sending.take(message_size(way.message))
                staging.pack(store, way.message, way.where)
        for key in dict.fromkeys(way.line.group for way in (*self.receives, *self.sends)):
            with communicators.get(key).batch() as batch:
                for way in self.receives:
                    if way.line.group == key and way.where is not None:
                        batch.recv(way.where, way.line.peer, TAG)
                for way in self.sends:
                    if way.line.group == key and way.where is not None:
                        batch.send(way.where, way.line.peer, TAG)
            self.batches.append(batch)

    def finish(self, store: ShardStore, staging: Staging) -> None:
        """Wait until all has arrived and gone, and put it where it belongs."""
        for batch in self.batches:
            batch.finish()
        for way in self.receives:
            if way.is_staged and way.where is not None:
                staging.unpack(store, way.message, way.where)
                staging.receiving.give(way.where)
            for piece in way.message:
                store.land(piece.unit, piece.tensor.ref, piece.box)
        for way in self.sends:
            if way.is_staged and way.where is not None:
                staging.sending.give(way.where)


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """Call it now; what comes back does nothing."""
    call()
    return _nothing


def _nothing() -> None:
    return None


def _lines(exchanges: Iterable[Exchange], me: EndpointId, max_bytes: int) -> Iterator[Line]:
    """One line per communicator and peer."""
    for exchange in exchanges:
        sends, receives = dict[EndpointId, Boxes](), dict[EndpointId, Boxes]()
        if isinstance(exchange, AllGather):
            _gather_boxes(exchange, me, sends, receives)
        else:
            for move in exchange.moves:
                if move.source.endpoint == me:
                    boxes, unit = sends.setdefault(move.target.endpoint, []), move.source.unit
                else:
                    boxes, unit = receives.setdefault(move.source.endpoint, []), move.target.unit
                boxes.append((unit, move.tensors, move.box))
        for peer in sorted({*sends, *receives}):
            cut = (messages(boxes.get(peer, ()), max_bytes) for boxes in (sends, receives))
            yield Line(exchange.group, peer, *cut)


def _gather_boxes(
    gather: AllGather, me: EndpointId, sends: dict[EndpointId, Boxes], receives: dict[EndpointId, Boxes]
) -> None:
    """An AllGather as every member's parts to every other: the bytes that each sends and receives are those of a ring."""
    target = gather.targets[gather.group.members.index(me)]
    for member, parts in zip(gather.group.members, gather.parts, strict=True):
        if member == me:
            boxes = [(part.unit, part.tensors, part.box) for part in parts]
            sends.update({peer: list(boxes) for peer in gather.group.members if peer != me and boxes})
        elif parts:
            receives[member] = [(target, part.tensors, part.box) for part in parts]
