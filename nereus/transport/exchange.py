"""The exchanges of one operation as one endpoint sees them: which messages it sends to and receives from each peer.

    post a round: receives and sends of one message per peer -> the next round -> finish the first: unpack -> ..

A piece that lies in one run of memory is sent from there or received into there; the rest is packed into staging buffers
that are used again, so that they never hold more than a bucket each way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import torch

from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, UnitId
from nereus.layout.tensors import CanonicalTensor
from nereus.transition.messages import WINDOW, Message, messages
from nereus.transition.ops import AllGather, Exchange, GroupKey, Op
from nereus.transport.communicator import Batch
from nereus.transport.communicators import Communicators
from nereus.transport.ports import ShardStore
from nereus.transport.staging import Staging

TAG = 1
"""One tag for all messages: those of a pair of endpoints arrive in the order in which both ends walk the exchanges."""

Boxes = list[tuple[UnitId, CanonicalTensor, Box]]


@dataclass(frozen=True, slots=True)
class Line:
    """All messages between this endpoint and one peer on one communicator."""

    group: GroupKey
    peer: EndpointId
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """All exchanges of an operation, or of one bucket of it, that this endpoint takes part in."""

    waves: tuple[tuple[Line, ...], ...]
    """Lines of a later wave send what those of an earlier one have received."""

    @classmethod
    def of(cls, op: Op, me: EndpointId) -> Exchanges:
        """The part of `op` that `me` takes part in, in the order of the operation."""
        mine = sorted((x for x in op.exchanges if me in x.group.members), key=lambda x: x.wave)
        return cls(
            tuple(tuple(_lines(wave, me, op.message_bytes)) for _, wave in groupby(mine, key=lambda exchange: exchange.wave))
        )

    @property
    def received_bytes(self) -> int:
        """Bytes that come from other endpoints."""
        return sum(p.num_bytes for wave in self.waves for line in wave for message in line.receives for p in message)

    def run(self, store: ShardStore, communicators: Communicators, staging: Staging) -> None:
        """Exchange everything; returns when all boxes have landed."""
        for wave in self.waves:
            under_way: deque[_Round] = deque()
            for number in range(max(max(len(line.sends), len(line.receives)) for line in wave)):
                if len(under_way) == WINDOW:
                    under_way.popleft().finish(store, staging)
                under_way.append(_Round.posted(wave, number, store, communicators, staging))
            while under_way:
                under_way.popleft().finish(store, staging)


@dataclass(slots=True)
class _Round:
    """One message each way for each peer, under way together."""

    batches: list[Batch] = field(default_factory=list)
    arriving: list[tuple[Message, torch.Tensor | None]] = field(default_factory=list)
    """What comes, and the staging buffer that it comes into, if it does."""
    leaving: list[torch.Tensor] = field(default_factory=list)
    """Staging buffers of what goes."""

    @classmethod
    def posted(
        cls, wave: Iterable[Line], number: int, store: ShardStore, communicators: Communicators, staging: Staging
    ) -> _Round:
        """Post the messages of this number: receives first, so that no send waits for one."""
        posted = cls()
        for key, lines in groupby(wave, key=lambda line: line.group):
            here = [line for line in lines if number < max(len(line.sends), len(line.receives))]
            if not here:
                continue
            with communicators.get(key).batch() as batch:
                for line in here:
                    if number < len(line.receives):
                        message = line.receives[number]
                        target, buffer = staging.direct_target(store, message), None
                        if target is None:
                            target = buffer = staging.take(message)
                        batch.recv(target, line.peer, TAG)
                        posted.arriving.append((message, buffer))
                for line in here:
                    if number < len(line.sends):
                        message = line.sends[number]
                        source = staging.direct_source(store, message)
                        if source is None:
                            source = staging.packed(store, message)
                            posted.leaving.append(source)
                        batch.send(source, line.peer, TAG)
            posted.batches.append(batch)
        return posted

    def finish(self, store: ShardStore, staging: Staging) -> None:
        """Wait until all has arrived and gone, and put it where it belongs."""
        for batch in self.batches:
            batch.finish()
        for message, buffer in self.arriving:
            if buffer is not None:
                staging.unpack(store, message, buffer)
                staging.give(buffer)
            for piece in message:
                store.land(piece.unit, piece.tensor.ref, piece.box)
        for buffer in self.leaving:
            staging.give(buffer)


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
                boxes += [(unit, tensor, move.box) for tensor in move.tensors]
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
            boxes = [(part.unit, tensor, part.box) for part in parts for tensor in part.tensors]
            sends.update({peer: list(boxes) for peer in gather.group.members if peer != me and boxes})
        elif parts:
            receives[member] = [(target, tensor, part.box) for part in parts for tensor in part.tensors]
