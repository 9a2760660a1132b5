"""The additive digest of shards: equality of logical state, bit for bit, with nothing gathered.

    sum over elements of mix(element index in the canonical tensor, element bits)   mod 2^64, for each of two seeds

An endpoint hashes the boxes that it holds; the sums of disjoint boxes add up to that of the whole tensor, however it is
cut (`nereus.emu.digest` combines them, without torch). Work goes in blocks that stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nereus.emu.digest import BoxDigest
from nereus.errors import DigestMismatch
from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import Kind, TensorRef
from nereus.transport.ports import ShardStore

BLOCK = 1 << 16
"""Elements per block: 64 Ki hash four times faster than whole tensors, whose temporaries leave the cache (measured)."""

SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""Digits of pi; two independent sums make an accidental match of both a matter of 2^-128."""

INDEX_FACTOR = 0x9E3779B97F4A7C15
VALUE_FACTOR = 0xD6E8FEB86659FD93
MIX_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
MIX_SHIFTS = (30, 27, 31)
"""Odd factors, and the shifts of splitmix64: multiplication by an odd number and a right shift-xor are bijections."""

MASK = (1 << 64) - 1

_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
"""The integer dtype that shows an element's bits, by item size; narrower ones are sign-extended, which loses nothing."""


def unit_digests(store: ShardStore, unit: UnitId) -> tuple[BoxDigest, ...]:
    """The digest of every box of a unit that has landed at this endpoint.

    Raises DigestMismatch where a parameter is not what its master copy is in the parameter's type.
    """
    _check_masters(store, unit)
    return tuple(
        BoxDigest(tensor.ref, box, box_sums(store.read(unit, tensor.ref, box), box, tensor.shape))
        for tensor, boxes in store.catalog()[unit].items()
        for box in boxes
    )


def _check_masters(store: ShardStore, unit: UnitId) -> None:
    """Model weights must be refreshed with their masters: stale ones show in no error and in no loss (trap 9)."""
    held = store.catalog()[unit]
    for tensor, boxes in held.items():
        weights = TensorRef(tensor.name, Kind.PARAMETER)
        if tensor.kind is not Kind.MASTER or all(known.ref != weights for known in held):
            continue
        for box in boxes:
            parameter = store.read(unit, weights, box)
            if not torch.equal(parameter, store.read(unit, tensor.ref, box).to(parameter.dtype)):
                raise DigestMismatch(f"{unit}: {weights} {box.low}:{box.high} is not its master copy in {parameter.dtype}")


def box_sums(values: torch.Tensor, box: Box, shape: tuple[int, ...]) -> tuple[int, int]:
    """The two sums modulo 2^64 of a box of a canonical tensor of shape `shape`; `values` has the box's shape."""
    steps = _index_steps(box, shape)
    origin = sum(low * stride for low, stride in zip(box.low, _strides(shape), strict=True))
    sums = [0, 0]
    with torch.no_grad():
        for start, flat in _blocks(values):
            index = _canonical_index(start, flat.numel(), origin, steps, values.device).mul_(_signed(INDEX_FACTOR))
            bits = flat.view(_BITS[flat.element_size()]).to(torch.int64) * _signed(
                VALUE_FACTOR
            )  # never in place: it is a view
            for i, seed in enumerate(SEEDS):
                sums[i] += int(_mix((index + _signed(seed)).bitwise_xor_(bits)).sum())
    return sums[0] & MASK, sums[1] & MASK


def _blocks(values: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """The elements in C order, at most BLOCK at a time, each with its position; copies no more than one row or block."""
    rows = values.reshape(1) if values.dim() == 0 else values
    row_size = rows[:1].numel()
    num_rows = max(1, BLOCK // max(1, row_size))
    for first in range(0, rows.shape[0], num_rows):
        flat = rows[first : first + num_rows].reshape(-1)
        for low in range(0, flat.numel(), BLOCK):
            yield first * row_size + low, flat[low : low + BLOCK]


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The splitmix64 finalizer, in place."""
    for shift, factor in zip(MIX_SHIFTS, (*MIX_FACTORS, None), strict=True):
        # torch shifts int64 arithmetically; the mask makes the shift logical
        x.bitwise_xor_((x >> shift).bitwise_and_((1 << (64 - shift)) - 1))
        if factor is not None:
            x.mul_(_signed(factor))
    return x


def _canonical_index(
    start: int, count: int, origin: int, steps: list[tuple[int, int]], device: torch.device
) -> torch.Tensor:
    """The linear indices in the canonical tensor of `count` elements of the box from position `start` on."""
    position = torch.arange(start, start + count, dtype=torch.int64, device=device)
    if len(steps) <= 1:
        return position.mul_(steps[0][1] if steps else 1).add_(origin)
    index = torch.full_like(position, origin)
    for extent, stride in reversed(steps):
        index.add_((position % extent).mul_(stride))
        position.div_(extent, rounding_mode="floor")
    return index


def _index_steps(box: Box, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """(extent, stride) of the box's axes, outermost first, with those merged that run on without a gap."""
    steps: list[tuple[int, int]] = []
    for extent, stride in zip(box.shape, _strides(shape), strict=True):
        if steps and steps[-1][1] == extent * stride:
            steps[-1] = (steps[-1][0] * extent, stride)
        else:
            steps.append((extent, stride))
    return steps


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that torch takes."""
    return value - (1 << 64) if value >= 1 << 63 else value
