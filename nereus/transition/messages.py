"""How moves between two endpoints are cut into messages: both ends do it alike, so contents line up without a header.

    moves -> pieces (boxes of at most one message) -> messages: a large piece alone, small ones together

A piece that is contiguous where it lies is sent from there, or received into there; the rest goes through a staging
buffer. A message is so small that WINDOW of them for every peer fit into the buffers, so that any round does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, Tensors, UnitId
from nereus.layout.tensors import CanonicalTensor
from nereus.transition.collectives import AllGather, Exchange
from nereus.transition.ops import Op
from nereus.transition.traffic import wire_bytes

WINDOW = 2
"""Staged messages of every peer that the buffers hold each way: one is packed or unpacked while another travels."""

ALONE_BYTES = 1 << 18
"""A piece of this size or more is a message of its own: the cost of a message is then a few percent of its transfer."""


class Piece(NamedTuple):
    """A box of one tensor that travels in one message."""

    unit: UnitId
    """The unit at this end: read by the sender, written by the receiver."""
    tensor: CanonicalTensor
    """The target's tensor, on both ends: its dtype is what travels."""
    box: Box
    num_bytes: int


Message = tuple[Piece, ...]


def message_size(message: Message) -> int:
    """Bytes that a message carries."""
    return sum(piece.num_bytes for piece in message)


def messages(boxes: Iterable[tuple[UnitId, Tensors, Box]], max_bytes: int) -> tuple[Message, ...]:
    """Cut what one endpoint sends to another into messages of at most `max_bytes`, or of one row where a row is longer."""
    found: list[Message] = []
    small: list[Piece] = []
    small_bytes = 0
    alone = min(ALONE_BYTES, max_bytes)
    for unit, tensors, box in boxes:
        parts = [(part, part.volume * tensors[0].item_bytes) for part in _rows(box, tensors[0].item_bytes, max_bytes)]
        for piece in (Piece(unit, tensor, part, size) for tensor in tensors for part, size in parts):
            if piece.num_bytes >= alone:
                found.append((piece,))
                continue
            if small and small_bytes + piece.num_bytes > max_bytes:
                found.append(_aligned(small))
                small, small_bytes = [], 0
            small.append(piece)
            small_bytes += piece.num_bytes
    return (*found, *([_aligned(small)] if small else []))


def _aligned(pieces: list[Piece]) -> Message:
    """Wider elements first, so that each piece of a buffer starts where its dtype may."""
    return tuple(sorted(pieces, key=lambda piece: -piece.tensor.item_bytes))


def _rows(box: Box, item_bytes: int, max_bytes: int) -> Iterator[Box]:
    """The box in runs of rows of at most so many bytes."""
    if box.volume * item_bytes <= max_bytes or not box.low:
        yield box
        return
    low, high = box.low[0], box.high[0]
    step = max(1, max_bytes * (high - low) // (box.volume * item_bytes))
    for start in range(low, high, step):
        yield box.along(0, start, min(start + step, high))


def buffers(op: Op) -> tuple[dict[EndpointId, int], ...]:
    """Bytes of the buffers that each endpoint holds, at most a bucket each way: for each bucket of a stream, or for all."""
    return tuple(
        {
            endpoint: min(sent, op.bucket_bytes) + min(received, op.bucket_bytes)
            for endpoint, (sent, received) in moved.items()
        }
        for moved in wire_bytes(op)
    )


def buffer_bytes(op: Op, endpoint: EndpointId) -> int:
    """Bytes of the buffers of one endpoint, in the bucket that takes most."""
    return max(held.get(endpoint, 0) for held in buffers(op))


def message_bytes(exchanges: Iterable[Exchange], bucket_bytes: int) -> int:
    """The largest message of an operation, so that every endpoint's share of the buffers holds its windows."""
    lines: Counter[EndpointId] = Counter()
    for exchange in exchanges:
        if isinstance(exchange, AllGather):
            lines.update(dict.fromkeys(exchange.group.members, len(exchange.group.members) - 1))
        else:
            pairs = {frozenset((move.source.endpoint, move.target.endpoint)) for move in exchange.moves}
            lines.update(endpoint for pair in pairs for endpoint in pair)
    return max(1, bucket_bytes // (WINDOW * max(lines.values(), default=1)))
