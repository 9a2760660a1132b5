"""The shard store as the executor sees it; a framework's store names its own module tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Protocol

import torch

from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import CanonicalTensor, TensorRef

Shards = Mapping[CanonicalTensor, tuple[Box, ...]]

NOTHING: Mapping[TensorRef, UnitId] = MappingProxyType({})
"""No shard changes hands."""


class ShardStore(Protocol):
    """The shards of the units that live on one endpoint. Used by one lane at a time."""

    def catalog(self) -> Mapping[UnitId, Shards]:
        """Which boxes have landed, by unit."""

    def read(self, unit: UnitId, ref: TensorRef, box: Box) -> torch.Tensor:
        """A view of a box, valid until the unit is released. Raises StoreError if it has not landed."""

    def open(self, unit: UnitId, shards: Shards, taken_over: Mapping[TensorRef, UnitId] = NOTHING) -> None:
        """Allocate shards of a unit, empty; a unit may be opened tensor by tensor.

        A tensor of `taken_over` is not allocated: the shard of the unit named there is this one's as well, the same memory,
        until the first of both is released. Raises OutOfDeviceMemory, and then has allocated nothing.
        """

    def write(self, unit: UnitId, ref: TensorRef, box: Box) -> torch.Tensor:
        """A view to receive a box into."""

    def land(self, unit: UnitId, ref: TensorRef, box: Box) -> None:
        """The box holds its elements from now on."""

    def release(self, unit: UnitId, refs: Collection[TensorRef] | None = None) -> None:
        """Drop a unit, or some of its tensors, and give their bytes back. Only after the last reader has ended."""
