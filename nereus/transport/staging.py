"""Where messages lie while they travel: in the shards themselves where they are in one run, else in a buffer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nereus.transition.messages import Message, Piece
from nereus.transport.ports import ShardStore
from nereus.transport.store import DTYPES


class Buffers:
    """Buffers of one direction; those that are given back are used again, and together they never exceed a limit."""

    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        self._device = device
        self._limit_bytes = limit_bytes
        self._free: list[torch.UntypedStorage] = []
        self.used_bytes = 0
        """Of those that were taken and not given back."""

    def has_room(self, num_bytes: int) -> bool:
        """Whether so much more can be taken; nothing always can."""
        return not num_bytes or self.used_bytes + num_bytes <= self._limit_bytes

    def take(self, num_bytes: int) -> torch.Tensor:
        """A buffer of exactly so many bytes, uint8."""
        fits = next((index for index, storage in enumerate(self._free) if storage.nbytes() == num_bytes), None)
        if fits is not None:
            storage = self._free.pop(fits)
        else:
            while self._free and self.held_bytes + num_bytes > self._limit_bytes:
                self._free.pop()
            storage = torch.empty(num_bytes, dtype=torch.uint8, device=self._device).untyped_storage()
        self.used_bytes += storage.nbytes()
        buffer = torch.empty(0, dtype=torch.uint8, device=self._device)
        buffer.set_(storage, 0, (num_bytes,), (1,))
        return buffer

    def give(self, buffer: torch.Tensor) -> None:
        """The buffer may be used again."""
        storage = buffer.untyped_storage()
        self.used_bytes -= storage.nbytes()
        self._free.append(storage)

    @property
    def held_bytes(self) -> int:
        """Of all buffers, in use or not."""
        return self.used_bytes + sum(storage.nbytes() for storage in self._free)


class Staging:
    """The staging buffers of one operation on one endpoint, at most a bucket each way."""

    def __init__(self, device: torch.device, bucket_bytes: int) -> None:
        self.receiving = Buffers(device, bucket_bytes)
        self.sending = Buffers(device, bucket_bytes)

    def has_room(self, received_bytes: int, sent_bytes: int) -> bool:
        """Whether so much more can be staged each way."""
        return self.receiving.has_room(received_bytes) and self.sending.has_room(sent_bytes)

    def direct_source(self, store: ShardStore, message: Message) -> torch.Tensor | None:
        """The bytes of a message of one piece where they lie, if they are in one run and travel as they are."""
        if len(message) != 1:
            return None
        view = store.read(message[0].unit, message[0].tensor.ref, message[0].box)
        return _bytes(view) if view.is_contiguous() and view.dtype == DTYPES[message[0].tensor.dtype] else None

    def direct_target(self, store: ShardStore, message: Message) -> torch.Tensor | None:
        """The bytes of the shard into which a message of one piece can be received."""
        if len(message) != 1:
            return None
        view = store.write(message[0].unit, message[0].tensor.ref, message[0].box)
        return _bytes(view) if view.is_contiguous() else None

    def pack(self, store: ShardStore, message: Message, buffer: torch.Tensor) -> None:
        """Copy the message's elements into a buffer, cast on the way."""
        for piece, part in _parts(message, buffer):
            part.copy_(store.read(piece.unit, piece.tensor.ref, piece.box))

    def unpack(self, store: ShardStore, message: Message, buffer: torch.Tensor) -> None:
        """Copy a received buffer into the boxes of the message."""
        for piece, part in _parts(message, buffer):
            store.write(piece.unit, piece.tensor.ref, piece.box).copy_(part)


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
