"""Where pieces of messages lie while they travel: in the shards themselves where they are in one run, else in a buffer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nereus.transition.messages import Message, Piece
from nereus.transport.ports import ShardStore
from nereus.transport.store import DTYPES


class Staging:
    """The staging buffers of one operation on one endpoint; those that are given back are used again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.UntypedStorage] = []

    def direct_source(self, store: ShardStore, message: Message) -> torch.Tensor | None:
        """The elements of a message of one piece where they lie, if they are in one run and travel as they are."""
        if len(message) != 1:
            return None
        view = store.read(message[0].unit, message[0].tensor.ref, message[0].box)
        return _bytes(view) if view.is_contiguous() and view.dtype == DTYPES[message[0].tensor.dtype] else None

    def direct_target(self, store: ShardStore, message: Message) -> torch.Tensor | None:
        """Where a message of one piece can be received into the shard itself."""
        if len(message) != 1:
            return None
        view = store.write(message[0].unit, message[0].tensor.ref, message[0].box)
        return _bytes(view) if view.is_contiguous() else None

    def take(self, message: Message) -> torch.Tensor:
        """A buffer of exactly the message's bytes; one that was given back, if it is large enough."""
        num_bytes = message_size(message)
        fits = next((index for index, storage in enumerate(self._free) if storage.nbytes() >= num_bytes), None)
        if fits is None:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        buffer = torch.empty(0, dtype=torch.uint8, device=self._device)
        buffer.set_(self._free.pop(fits), 0, (num_bytes,), (1,))
        return buffer

    def give(self, buffer: torch.Tensor) -> None:
        """The buffer may be used again."""
        self._free.append(buffer.untyped_storage())

    def packed(self, store: ShardStore, message: Message) -> torch.Tensor:
        """A buffer with the message's elements, cast on the way."""
        buffer = self.take(message)
        for piece, part in _parts(message, buffer):
            part.copy_(store.read(piece.unit, piece.tensor.ref, piece.box))
        return buffer

    def unpack(self, store: ShardStore, message: Message, buffer: torch.Tensor) -> None:
        """Copy a received buffer into the boxes of the message."""
        for piece, part in _parts(message, buffer):
            store.write(piece.unit, piece.tensor.ref, piece.box).copy_(part)


def message_size(message: Message) -> int:
    """Bytes that a message carries."""
    return sum(piece.num_bytes for piece in message)


def _bytes(view: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as its bytes."""
    return view.reshape(-1).view(torch.uint8)


def _parts(message: Message, buffer: torch.Tensor) -> Iterator[tuple[Piece, torch.Tensor]]:
    """Each piece, and the elements of the buffer that are its own, in its shape."""
    offset = 0
    for piece in message:
        elements = buffer[offset : offset + piece.num_bytes].view(DTYPES[piece.tensor.dtype])
        yield piece, elements.view(piece.box.shape)
        offset += piece.num_bytes
