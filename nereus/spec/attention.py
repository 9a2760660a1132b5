"""What the attention of a decoder sees and keeps: contexts by layer, and the KV cache.

Decoder, tokens of a sequence -> keys that a query sees (FLOPs), tokens and elements that are kept (memory, decoding)
"""

from __future__ import annotations

from math import ceil

from nereus.spec.decoder import Decoder, Window


def window_of(decoder: Decoder, layer: int) -> Window | None:
    """What bounds the context of a layer; None where queries see all of it."""
    window = decoder.window
    return window if window is not None and layer in window.layers else None


def seen_keys(decoder: Decoder, layer: int, tokens: int) -> int:
    """Pairs of a query and a key that it sees, in one layer over a whole sequence (causal, its own key included)."""
    window = window_of(decoder, layer)
    if window is None or tokens <= window.size:
        return _causal(tokens)
    size = window.size
    if window.chunked:
        return tokens // size * _causal(size) + _causal(tokens % size)
    return _causal(size) + (tokens - size) * size


def _causal(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def kept_tokens(decoder: Decoder, layer: int, tokens: int) -> int:
    """Tokens of a sequence of so many that the KV cache of a layer keeps: those that the next query may see."""
    window = window_of(decoder, layer)
    return tokens if window is None else min(tokens, window.size)


def kv_elements(decoder: Decoder, tp: int = 1) -> int:
    """Elements that the KV cache keeps of one token in one layer, on the fullest rank of a TP group.

    Key-value heads are shared out, and repeated where there are fewer of them than ranks. MLA keeps one compressed vector
    for all heads, on every rank.
    """
    if decoder.latent is not None:
        return decoder.latent.kv_rank + decoder.latent.rope_dim
    return 2 * ceil(decoder.num_kv_heads / tp) * decoder.head_dim


def kv_bytes_per_token(decoder: Decoder, item_bytes: int) -> int:
    """Bytes that one token takes in the KV cache of all layers, as long as no window has closed."""
    return decoder.num_layers * kv_elements(decoder) * item_bytes


def kv_cache_elements(decoder: Decoder, layers: range, tokens: int, tp: int = 1) -> int:
    """Elements of the KV cache of one sequence in these layers, on the fullest rank of a TP group."""
    return kv_elements(decoder, tp) * sum(kept_tokens(decoder, layer, tokens) for layer in layers)


def head_products(decoder: Decoder, *, absorbed: bool = False) -> int:
    """Multiply-adds of one query head with one key and its value.

    `absorbed`: MLA as it decodes, with queries taken into the compressed space (DeepSeek-V2, section 2.1.2), so that keys
    and values are the compressed vector itself. Without MLA there is no difference.
    """
    latent = decoder.latent
    if latent is None or not absorbed:
        return decoder.head_dim + decoder.value_dim
    return 2 * latent.kv_rank + latent.rope_dim


def attention_products(decoder: Decoder, layers: range, tokens: int, tp: int = 1) -> int:
    """Multiply-adds of queries with keys and of weights with values, over a whole sequence in these layers: half of the
    FLOPs of a forward. On the fullest rank of a TP group."""
    pairs = sum(seen_keys(decoder, layer, tokens) for layer in layers)
    return ceil(decoder.num_heads / tp) * head_products(decoder) * pairs
