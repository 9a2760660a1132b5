"""What a stage program sees of a unit for one call: its tensors, its place in the EMU, and its channels.

A view is made for a call and not kept: the unit may be gone at the next boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nereus.emu.unit import Emu
from nereus.layout.layout import Coordinate
from nereus.layout.tensors import Kind
from nereus.rl.channels import Channels
from nereus.rl.model import Decoder
from nereus.rl.pacing import Pacer
from nereus.spec.model import ModelShape
from nereus.transport.memory import DeviceMemory
from nereus.transport.store import UnitStore


@dataclass(frozen=True, slots=True)
class UnitView:
    """One rank's part of one unit."""

    emu: Emu
    rank: int
    shape: ModelShape
    store: UnitStore
    channels: Channels
    memory: DeviceMemory
    pacer: Pacer
    torch_device: torch.device

    @property
    def coordinate(self) -> Coordinate:
        return self.emu.layout.coordinate(self.rank)

    @property
    def answers(self) -> bool:
        """Whether this rank reports the unit's result: the first TP rank of the last pipeline rank."""
        return self.coordinate.tp == 0 and self.coordinate.pp == self.emu.layout.pp - 1

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The local parameter shards by canonical name."""
        return self.store.tensors(self.emu.unit, Kind.PARAMETER)

    def moments(self, kind: Kind) -> dict[str, torch.Tensor]:
        """The local shards of an optimizer moment by canonical name."""
        return self.store.tensors(self.emu.unit, kind)

    @property
    def counters(self) -> dict[str, torch.Tensor]:
        """The scalars of the logical state: int64, shape ()."""
        return self.store.tensors(self.emu.unit, Kind.SCALAR)

    def decoder(self, parameters: dict[str, torch.Tensor] | None = None) -> Decoder:
        """The model over the unit's parameters, or over leaves that alias them."""
        tensors = self.parameters if parameters is None else parameters
        return Decoder(self.shape, self.emu.layout, self.rank, tensors, self.channels)
