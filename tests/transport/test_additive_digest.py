"""The digest of a box against a slow reference in plain Python, and its additivity over random cuts."""

from __future__ import annotations

import struct
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.layout.box import Box
from nereus.transport.digest import BLOCK, box_sums
from nereus.transport.store import DTYPES

WORD = 1 << 64


def splitmix64(x: int) -> int:
    """The published finalizer (Steele, Lea and Flood, 2014), in unbounded integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % WORD
    return x ^ (x >> 31)


def reference(values: torch.Tensor, box: Box, shape: tuple[int, ...]) -> tuple[int, int]:
    sums = [0, 0]
    raw = {2: "<h", 4: "<i", 8: "<q"}[values.element_size()]
    for place in product(*(range(lo, hi) for lo, hi in zip(box.low, box.high, strict=True))):
        index = 0
        for at, extent in zip(place, shape, strict=True):
            index = index * extent + at
        element = values[tuple(at - lo for at, lo in zip(place, box.low, strict=True))]
        (bits,) = struct.unpack(raw, bytes(element.reshape(1).view(torch.uint8).tolist()))
        for i, seed in enumerate((0x243F6A8885A308D3, 0x13198A2E03707344)):
            key = (index * 0x9E3779B97F4A7C15 + seed) % WORD ^ (bits * 0xD6E8FEB86659FD93) % WORD
            sums[i] = (sums[i] + splitmix64(key)) % WORD
    return sums[0], sums[1]


def values_of(shape: tuple[int, ...], dtype: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 100
    return values.to(DTYPES[dtype])


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((), Box((), ())),
        ((7,), Box((2,), (6,))),
        ((5, 6), Box((1, 0), (4, 6))),
        ((5, 6), Box((0, 2), (5, 5))),
        ((3, 4, 5), Box((1, 1, 0), (3, 3, 5))),
        ((3, 4, 5), Box((0, 1, 2), (2, 4, 4))),
    ],
)
def test_digest_equals_the_slow_reference(dtype: str, shape: tuple[int, ...], box: Box) -> None:
    values = values_of(shape, dtype)
    part = values[box.slices((0,) * len(shape))]
    before = part.clone()
    assert box_sums(part, box, shape) == reference(part, box, shape)
    assert torch.equal(part, before)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A shape, and boxes that tile it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 6))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(box.low[axis], box.high[axis]))
        halves = (box.along(axis, box.low[axis], at), box.along(axis, at, box.high[axis]))
        boxes.extend(half for half in halves if half.volume)
    return shape, boxes


@given(tilings(), st.sampled_from(sorted(DTYPES)))
def test_digest_of_a_tensor_is_the_sum_over_any_cut(tiling: tuple[tuple[int, ...], list[Box]], dtype: str) -> None:
    shape, boxes = tiling
    values = values_of(shape, dtype)
    parts = [box_sums(values[box.slices((0,) * len(shape))], box, shape) for box in boxes]
    total = tuple(sum(part[i] for part in parts) % WORD for i in (0, 1))
    assert total == box_sums(values, Box.whole(shape), shape)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 3), st.integers(0, 1000))
def test_digest_of_many_blocks_is_the_sum_of_their_rows(num_blocks: int, extra: int) -> None:
    shape = (3, num_blocks * BLOCK + extra)
    values = values_of(shape, "float32")
    rows = [box_sums(values[i : i + 1], Box((i, 0), (i + 1, shape[1])), shape) for i in range(3)]
    assert box_sums(values, Box.whole(shape), shape) == tuple(sum(row[i] for row in rows) % WORD for i in (0, 1))


def test_digest_sees_a_flipped_bit_a_swap_a_shift_and_the_sign_of_zero() -> None:
    values = values_of((64,), "float32")
    whole = Box.whole(values.shape)
    flipped = values.clone()
    flipped.view(torch.int32)[13] ^= 1
    swapped = values[torch.tensor([1, 0, *range(2, 64)])]
    zeros = torch.zeros(64)
    digests = [box_sums(v, whole, (64,)) for v in (values, flipped, swapped, values.roll(1), zeros, -zeros)]
    for place in (0, 1):
        assert len({digest[place] for digest in digests}) == 6
