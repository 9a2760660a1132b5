"""The gradients of one rank between `accumulate` and `apply`: one flat buffer, a view of it per parameter.

Sums over ranks: kv heads that TP neighbours share, tied embeddings on both ends of the pipeline, then all replicas.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from nereus.layout.box import Box
from nereus.layout.tensors import CanonicalTensor, Kind, Place
from nereus.rl.view import UnitView
from nereus.transport.memory import DeviceMemory


class Gradients:
    """Owns the buffer and its bytes in the ledger until `free`."""

    def __init__(self, flat: torch.Tensor, by_name: Mapping[str, torch.Tensor], memory: DeviceMemory) -> None:
        self.by_name = by_name
        self._flat = flat
        self._memory = memory

    @classmethod
    def zeros(cls, leaves: Mapping[str, torch.Tensor], memory: DeviceMemory) -> Gradients:
        """A zeroed buffer whose views are set as the gradients of `leaves`, so that autograd adds into it."""
        first = next(iter(leaves.values()))
        size = sum(leaf.numel() for leaf in leaves.values())
        memory.reserve("gradients", size * first.element_size(), "gradients")
        flat = first.new_zeros(size).detach()
        by_name: dict[str, torch.Tensor] = {}
        offset = 0
        for name, leaf in leaves.items():
            by_name[name] = leaf.grad = flat[offset : offset + leaf.numel()].view_as(leaf)
            offset += leaf.numel()
        return cls(flat, by_name, memory)

    def all(self) -> list[torch.Tensor]:
        return [self._flat]

    def free(self) -> None:
        """Give the buffer back."""
        self._memory.free(self._flat.nbytes, "gradients")
        self._flat = self._flat.new_empty(0)
        self.by_name = {}

    def sum_over_ranks(self, view: UnitView) -> None:
        """Complete the gradients: every rank then holds those of its shards for the whole minibatch."""
        channels = view.channels
        for tensor in self._tensors(view):
            if tensor.is_shared(view.emu.layout.tp):
                channels.kv.reduce_(self.by_name[tensor.name])
            if tensor.place is Place.ENDS:
                channels.ends.reduce_(self.by_name[tensor.name])
        channels.dp.reduce_(self._flat)

    def global_norm(self, view: UnitView) -> float:
        """The L2 norm over the canonical gradient: each element counts once, however many ranks hold it."""
        total = torch.zeros(1, dtype=torch.float64, device=self._flat.device)
        held = view.store.catalog()[view.emu.unit]
        for tensor in self._tensors(view):
            counted = tensor.counted_boxes(view.emu.layout, view.rank, view.shape.num_layers)
            for box, part in zip(held[tensor], _parts(self.by_name[tensor.name], tensor, held[tensor]), strict=True):
                if box in counted:
                    total += part.double().square().sum()
        return float(view.channels.model.reduce_(total).sqrt())

    def _tensors(self, view: UnitView) -> list[CanonicalTensor]:
        held = view.store.catalog()[view.emu.unit]
        return [tensor for tensor in held if tensor.kind is Kind.PARAMETER]


def _parts(grad: torch.Tensor, tensor: CanonicalTensor, boxes: tuple[Box, ...]) -> list[torch.Tensor]:
    """The part of a local gradient that belongs to each box: segments follow each other along the cut axis."""
    if tensor.axis is None:
        return [grad]
    return list(torch.split(grad, [box.shape[tensor.axis] for box in boxes], tensor.axis))
