"""Randomness that belongs to logical coordinates, never to ranks.

    (seed, sample, position, token)  -> Gumbel noise:   sampling is argmax(logits + noise)
    (seed, tensor name, element)     -> normal values:  the weights that a run starts from

Every value is a 64-bit hash of its coordinates, so any cut of the batch, the vocabulary or a tensor sees the values
that the whole would see, and no generator has a state that a transition would have to move.
"""

from __future__ import annotations

import hashlib
import math

import torch


def _signed(value: int) -> int:
    """The same 64 bits as a two's complement integer, which is what an int64 tensor holds."""
    return value - (1 << 64) if value >= 1 << 63 else value


STRIDE = _signed(0x9E3779B97F4A7C15)
"""Odd step between neighbouring counters: 2^64 over the golden ratio, as in splitmix64. An even one would collide."""

POSITION_STRIDE = _signed(0xD1B54A32D192ED03)
"""Odd step between positions, unlike `STRIDE`, so that no (sample, position) stands in for a neighbour."""

MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))
"""The two multipliers of splitmix64's finaliser (Steele, Lea and Flood 2014, variant 13 of Stafford)."""

SECOND = _signed(0xA0761D6478BD642F)
"""Tells the second uniform of a Box-Muller pair from the first; any constant with mixed bits does."""

UNIFORM_BITS = 52
"""Bits of a uniform value. With 52 of them (k + 0.5) / 2^52 is exact in float64 and never 0 or 1; with 53 it rounds to 1."""


def gumbel(
    seed: int, samples: torch.Tensor, position: int, vocab: range, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Standard Gumbel noise of (seed, sample, position, token), on the device of `samples`.

    samples: int64 [B], ids of samples; position: index of the token in the response; vocab: the token ids of this shard.
    Returns [B, len(vocab)], finite, in float32 or float64 (computed in float64, then rounded).
    """
    rows = _mix(samples * STRIDE + _key(seed, "gumbel"))
    rows = _mix(rows + _signed(position * POSITION_STRIDE % (1 << 64)))
    tokens = torch.arange(vocab.start, vocab.stop, vocab.step, dtype=torch.int64, device=samples.device) * STRIDE
    noise = _uniform(_mix(rows[:, None] + tokens))
    return noise.log_().neg_().log_().neg_().to(dtype)


def normal(seed: int, name: str, indices: torch.Tensor) -> torch.Tensor:
    """Standard normal values of (seed, name, element index), by Box-Muller.

    indices: int64 of any shape, canonical element indices of the tensor `name`. Returns float64 of that shape.
    """
    first = _mix(indices.contiguous() * STRIDE + _key(seed, "normal", name))
    second = _mix(first ^ SECOND)
    radius = _uniform(first).log_().mul_(-2.0).sqrt_()
    return radius.mul_(_uniform(second).mul_(2.0 * math.pi).cos_())


def _key(seed: int, *purpose: str) -> int:
    """64 bits of a seed and a purpose, so that no two purposes share a stream."""
    text = "\0".join((str(seed), *purpose)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64, in place: a bijection of 64 bits in which every bit depends on every other."""
    _xor_shift(x, 30).mul_(MULTIPLIERS[0])
    _xor_shift(x, 27).mul_(MULTIPLIERS[1])
    return _xor_shift(x, 31)


def _xor_shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """x ^= x >>> bits, in place. int64's own shift copies the sign down; the mask takes those copies away."""
    return x.bitwise_xor_((x >> bits).bitwise_and_((1 << (64 - bits)) - 1))


def _uniform(x: torch.Tensor) -> torch.Tensor:
    """Hash bits as float64 strictly between 0 and 1."""
    drop = 64 - UNIFORM_BITS
    kept = (x >> drop).bitwise_and_((1 << UNIFORM_BITS) - 1)
    return kept.to(torch.float64).add_(0.5).mul_(2.0**-UNIFORM_BITS)
