"""Boxes into one contiguous buffer and back: what two endpoints exchange is one message without a header.

Both ends list the same boxes in the same order; they travel in the dtype of the target's tensor, so a weight sync to
a narrower dtype sends narrow elements. Wider elements come first, which keeps every one aligned in the byte buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import CanonicalTensor
from nereus.transport.ports import ShardStore
from nereus.transport.store import DTYPES


class Item(NamedTuple):
    """A box of a local unit that is sent from, or received into."""

    unit: UnitId
    tensor: CanonicalTensor
    """The target's tensor, on both ends: its dtype is what travels."""
    box: Box

    @property
    def num_bytes(self) -> int:
        return self.box.volume * self.tensor.item_bytes


def in_wire_order(items: Iterable[Item]) -> tuple[Item, ...]:
    """The items as they lie in the buffer: wider elements first, else in the order given."""
    return tuple(sorted(items, key=lambda item: -item.tensor.item_bytes))


def wire_bytes(items: Iterable[Item]) -> int:
    """Bytes of the buffer that these items fill."""
    return sum(item.num_bytes for item in items)


def pack(store: ShardStore, items: Iterable[Item], buffer: torch.Tensor) -> None:
    """Copy the items' elements into `buffer` (uint8, exactly `wire_bytes` long), cast on the way."""
    for item, part in _parts(items, buffer):
        part.copy_(store.read(item.unit, item.tensor.ref, item.box))


def unpack(store: ShardStore, items: Iterable[Item], buffer: torch.Tensor) -> None:
    """Copy a received buffer into the items' boxes, which have landed then."""
    for item, part in _parts(items, buffer):
        store.write(item.unit, item.tensor.ref, item.box).copy_(part)


def _parts(items: Iterable[Item], buffer: torch.Tensor) -> Iterator[tuple[Item, torch.Tensor]]:
    """Each item, and the elements of the buffer that are its own, in its shape."""
    offset = 0
    for item in in_wire_order(items):
        elements = buffer[offset : offset + item.num_bytes].view(DTYPES[item.tensor.dtype])
        yield item, elements.view(item.box.shape)
        offset += item.num_bytes
