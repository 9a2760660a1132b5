"""Contexts and KV caches against a mask that is written out, and MLA against its paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.spec.attention import (
    attention_products,
    head_products,
    kept_tokens,
    kv_bytes_per_token,
    kv_cache_elements,
    kv_elements,
    seen_keys,
)
from nereus.spec.decoder import Decoder, LatentAttention, Window

FULL = Decoder(hidden_size=64, num_layers=4, num_heads=8, num_kv_heads=2, head_dim=16, ffn_size=96, vocab_size=100)
MLA = replace(FULL, num_kv_heads=8, latent=LatentAttention(q_rank=0, kv_rank=32, rope_dim=4, value_dim=12))


def with_window(size: int, *, chunked: bool) -> Decoder:
    """Layer 0 sees all, layer 1 a window."""
    return replace(FULL, window=Window(size=size, layers=frozenset((1,)), chunked=chunked))


def sees(query: int, key: int, size: int, chunked: bool) -> bool:
    """The mask of one query and one key."""
    return key <= query and (key // size == query // size if chunked else query - key < size)


@given(tokens=st.integers(0, 40), size=st.integers(1, 20), chunked=st.booleans())
def test_keys_that_are_seen_are_those_of_the_mask(tokens: int, size: int, chunked: bool) -> None:
    decoder = with_window(size, chunked=chunked)
    pairs = [(query, key) for query in range(tokens) for key in range(tokens)]
    assert seen_keys(decoder, 0, tokens) == sum(key <= query for query, key in pairs)
    assert seen_keys(decoder, 1, tokens) == sum(sees(query, key, size, chunked) for query, key in pairs)


@given(tokens=st.integers(1, 40), size=st.integers(1, 20), chunked=st.booleans())
def test_no_query_sees_more_than_the_cache_keeps(tokens: int, size: int, chunked: bool) -> None:
    decoder = with_window(size, chunked=chunked)
    most = max(sum(sees(query, key, size, chunked) for key in range(tokens)) for query in range(tokens))
    assert kept_tokens(decoder, 1, tokens) == most
    assert kept_tokens(decoder, 0, tokens) == tokens


def test_cache_of_a_sequence_is_that_of_its_layers() -> None:
    decoder = with_window(10, chunked=False)
    assert kv_cache_elements(decoder, range(4), 25) == 2 * 2 * 16 * (3 * 25 + 10)
    assert kv_cache_elements(decoder, range(1, 2), 25, tp=2) == 2 * 16 * 10


@pytest.mark.parametrize(("tp", "heads"), [(1, 2), (2, 1), (4, 1), (8, 1)])
def test_key_value_heads_are_shared_out_and_then_repeated(tp: int, heads: int) -> None:
    assert kv_elements(FULL, tp) == 2 * heads * 16


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_latent_cache_is_one_vector_on_every_rank(tp: int) -> None:
    assert kv_elements(MLA, tp) == 32 + 4
    assert kv_bytes_per_token(MLA, 2) == 4 * (32 + 4) * 2


def test_products_of_a_head_are_those_of_its_key_and_its_value() -> None:
    assert head_products(FULL) == head_products(FULL, absorbed=True) == 16 + 16
    assert head_products(MLA) == 16 + 12
    assert head_products(MLA, absorbed=True) == (32 + 4) + 32


def test_products_of_a_sequence_are_those_of_its_heads_and_the_keys_that_they_see() -> None:
    decoder = with_window(10, chunked=False)
    full, window = 25 * 26 // 2, 10 * 11 // 2 + 15 * 10
    assert attention_products(decoder, range(4), 25) == 8 * 32 * (3 * full + window)
    assert attention_products(decoder, range(1), 25, tp=4) == 2 * 32 * full
