"""The KV cache of one wave of rows on one rank: a transient, counted in the device's ledger, gone at the boundary.

Rows are ragged: row b appends at its own positions, so that prompts of different lengths decode together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nereus.spec.model import ModelShape
from nereus.transport.memory import DeviceMemory


class KvCache:
    """Keys and values [batch, kv heads, capacity, dim] of the layers of one rank."""

    def __init__(
        self, layers: range, batch: int, num_kv_heads: int, capacity: int, head_dim: int, like: torch.Tensor
    ) -> None:
        shape = (batch, num_kv_heads, capacity, head_dim)
        self._keys = {layer: like.new_zeros(shape) for layer in layers}
        self._values = {layer: like.new_zeros(shape) for layer in layers}
        self._slots = torch.arange(capacity, device=like.device)
        self._rows = torch.arange(batch, device=like.device).unsqueeze(1)

    def append(
        self, layer: int, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Store k, v [batch, heads, n, dim] at positions [batch, n]; returns all keys, values and the mask to read them."""
        length = int(positions.max()) + 1
        keys, values = self._keys[layer], self._values[layer]
        keys[self._rows, :, positions] = k.transpose(1, 2)
        values[self._rows, :, positions] = v.transpose(1, 2)
        mask = self._slots[:length] <= positions.unsqueeze(-1)
        return keys[:, :, :length], values[:, :, :length], mask.unsqueeze(1)


def kv_cache_bytes(shape: ModelShape, num_layers: int, num_kv_heads: int, batch: int, capacity: int, item: int) -> int:
    """Bytes of a cache of `capacity` tokens a row."""
    return 2 * num_layers * batch * num_kv_heads * capacity * shape.head_dim * item


@contextmanager
def kv_cache(
    memory: DeviceMemory, shape: ModelShape, layers: range, keys: torch.Tensor, batch: int, capacity: int
) -> Iterator[KvCache]:
    """A cache for the kv heads that the rows of the k projection `keys` make, reserved while it lives."""
    num_kv_heads = keys.shape[0] // shape.head_dim
    num_bytes = kv_cache_bytes(shape, len(layers), num_kv_heads, batch, capacity, keys.element_size())
    with memory.holding(f"KV cache of {batch} rows of {capacity} tokens", num_bytes, "kv"):
        yield KvCache(layers, batch, num_kv_heads, capacity, shape.head_dim, keys)
