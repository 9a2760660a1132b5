"""The oracle of a logical state: a function of each tensor's name, so every process can make and check its own shards.

    whole(tensor) -> mask of what a rank holds (tests/builders, written from the paper) -> the elements that it must hold

A parameter of less than 32 bits is the cast of its master copy, as training leaves it.
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

import torch

from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.layout.tensors import CanonicalTensor, Kind
from nereus.transport.store import DTYPES
from tests.builders import element_mask


@lru_cache(maxsize=4096)
def whole(tensor: CanonicalTensor) -> torch.Tensor:
    """The global tensor."""
    name = tensor.name if tensor.kind is Kind.MASTER else str(tensor.ref)
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    if tensor.dtype == "int64":
        return torch.randint(1 << 40, tensor.shape, generator=generator)
    values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return values.to(DTYPES[tensor.dtype]) if tensor.item_bytes > 2 else values.float().to(DTYPES[tensor.dtype])


def elements(tensor: CanonicalTensor, emu: Emu, rank: int, state: StateSpec, origin: CanonicalTensor) -> torch.Tensor:
    """What `rank` of a unit must hold of a tensor, flat and in C order: the values of `origin`, cast."""
    layout = emu.layout
    tp_rank, fsdp_rank, pp_rank = rank % layout.tp, rank // layout.tp % layout.fsdp, rank // layout.tp // layout.fsdp
    parts = (fsdp_rank, layout.fsdp, *emu.optimizer)
    mask = element_mask(tensor, layout.tp, layout.pp, tp_rank, pp_rank, state.num_layers, parts)
    return whole(origin).to(DTYPES[tensor.dtype])[torch.from_numpy(mask.copy())]
