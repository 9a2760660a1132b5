"""Noise is a function of coordinates: reproducible, cut-invariant, and of the distribution that it claims."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.rl.noise import _mix, gumbel, normal

MASK = (1 << 64) - 1


def splitmix_finaliser(x: int) -> int:
    """splitmix64's finaliser on Python integers, from the paper; the reference for the tensor version."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20))
def test_mix_equals_splitmix64_on_python_integers(values: list[int]) -> None:
    mixed = _mix(torch.tensor(values, dtype=torch.int64))
    assert [value & MASK for value in mixed.tolist()] == [splitmix_finaliser(value & MASK) for value in values]


def test_mix_gives_the_published_first_output_of_splitmix64() -> None:
    state = torch.tensor([0x9E3779B97F4A7C15 - (1 << 64)], dtype=torch.int64)
    assert int(_mix(state).item()) & MASK == 0xE220A8397B1DCDAF


def test_gumbel_is_reproducible_and_depends_on_every_coordinate() -> None:
    samples = torch.arange(4)
    noise = gumbel(7, samples, 3, range(16))
    assert torch.equal(noise, gumbel(7, samples, 3, range(16)))
    assert not torch.isclose(noise, gumbel(8, samples, 3, range(16))).any()
    assert not torch.isclose(noise, gumbel(7, samples, 4, range(16))).any()
    assert not torch.isclose(noise, gumbel(7, samples + 4, 3, range(16))).any()
    assert len(set(noise.flatten().tolist())) == noise.numel()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100), st.integers(0, 23), st.lists(st.integers(0, 77), max_size=8))
def test_gumbel_is_the_same_for_any_cut_of_batch_and_vocabulary(position: int, row: int, inner: list[int]) -> None:
    samples, cuts = torch.arange(1000, 1023), [0, *sorted(inner), 77]
    whole = gumbel(1, samples, position, range(77))
    for lo, hi in ((0, row), (row, 23)):
        pieces = [gumbel(1, samples[lo:hi], position, range(a, b)) for a, b in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(pieces, 1), whole[lo:hi])


def test_gumbel_of_one_cell_equals_its_cell_in_the_whole() -> None:
    samples = torch.arange(13) * 7919
    whole = gumbel(5, samples, 2, range(67))
    cells = [
        [gumbel(5, samples[row : row + 1], 2, range(token, token + 1)).item() for token in range(67)] for row in range(13)
    ]
    assert whole.tolist() == cells


def test_gumbel_in_float32_is_the_rounded_float64() -> None:
    samples = torch.arange(8)
    assert torch.equal(gumbel(0, samples, 0, range(64), torch.float32), gumbel(0, samples, 0, range(64)).float())


def test_gumbel_has_the_moments_of_a_gumbel_distribution() -> None:
    noise = gumbel(11, torch.arange(1000), 0, range(1000))
    assert torch.isfinite(noise).all()
    # A million draws: standard errors 0.0013 (mean) and 0.0033 (variance, from the kurtosis 5.4).
    assert noise.mean().item() == pytest.approx(0.577216, abs=0.006)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.015)


def test_gumbel_of_neighbouring_coordinates_is_uncorrelated() -> None:
    samples = torch.arange(500)
    a, b = gumbel(2, samples, 5, range(400)), gumbel(2, samples, 6, range(400))
    for left, right in ((a, b), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a[1:], b[:-1]), (a[:-1], b[1:])):
        correlation = torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1].item()
        assert abs(correlation) < 0.012  # 5 standard errors of 200,000 pairs


def test_argmax_of_logits_and_gumbel_samples_from_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 0.5], dtype=torch.float64)
    num_samples = 60_000
    chosen = (logits + gumbel(3, torch.arange(num_samples), 9, range(6))).argmax(1)
    expected = logits.softmax(0) * num_samples
    chi_square = ((torch.bincount(chosen, minlength=6) - expected) ** 2 / expected).sum().item()
    assert chi_square < 25.7  # exceeded with probability 1e-4 at 5 degrees of freedom


def test_normal_has_the_moments_of_a_normal_distribution() -> None:
    values = normal(3, "model.embed_tokens.weight", torch.arange(400_000))
    assert values.dtype == torch.float64
    assert torch.isfinite(values).all()
    assert values.mean().item() == pytest.approx(0.0, abs=0.008)
    assert values.var().item() == pytest.approx(1.0, abs=0.012)
    assert (values**4).mean().item() == pytest.approx(3.0, abs=0.08)
    assert (values.abs() > 1.959964).double().mean().item() == pytest.approx(0.05, abs=0.002)


def test_normal_is_the_same_for_any_subset_of_elements() -> None:
    indices = torch.arange(31 * 17).reshape(31, 17)
    whole = normal(1, "w", indices)
    assert torch.equal(whole[3:20, 5:9], normal(1, "w", indices[3:20, 5:9]))
    assert whole.flatten().tolist() == [normal(1, "w", torch.tensor([index])).item() for index in range(31 * 17)]


def test_normal_differs_by_seed_and_name() -> None:
    indices = torch.arange(100)
    assert not torch.isclose(normal(1, "a", indices), normal(1, "b", indices), atol=1e-6).any()
    assert not torch.isclose(normal(1, "a", indices), normal(2, "a", indices), atol=1e-6).any()


def test_gumbel_is_fast_enough_to_sample_every_token() -> None:
    samples, threads = torch.arange(32), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timings = []
        for position in range(60):
            start = time.thread_time()
            gumbel(0, samples, position, range(64))
            timings.append(time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    assert min(timings) < 0.3e-3
