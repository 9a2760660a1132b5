"""The shard store as the executor sees it; a framework's store names its own module tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import CanonicalTensor, TensorRef

Shards = Mapping[CanonicalTensor, tuple[Box, ...]]


class ShardStore(Protocol):
    """The shards of the units that live on one endpoint. Used by one lane at a time."""

    def catalog(self) -> Mapping[UnitId, Shards]:
        """Which boxes have landed, by unit."""

    def read(self, unit: UnitId, ref: TensorRef, box: Box) -> torch.Tensor:
        """A view of a box, valid until the unit is released. Raises StoreError if it has not landed."""

    def open(self, unit: UnitId, shards: Shards) -> None:
        """Allocate a unit's shards, empty. Raises OutOfDeviceMemory, and then has allocated nothing."""

    def write(self, unit: UnitId, ref: TensorRef, box: Box) -> torch.Tensor:
        """A view to receive a box into; the box counts as landed from now on."""

    def release(self, unit: UnitId) -> None:
        """Drop a unit and give its bytes back. Only after the last reader has ended."""
