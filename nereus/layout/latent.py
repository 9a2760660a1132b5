"""The tensors of multi-head latent attention: what compresses is whole on every TP rank, what comes out is cut by heads."""

from __future__ import annotations

from collections.abc import Iterator

from nereus.layout.parameters import LayerTensors, heads
from nereus.layout.tensors import CanonicalTensor
from nereus.spec.decoder import Decoder, LatentAttention


def latent_attention(make: LayerTensors, layer: int, decoder: Decoder, latent: LatentAttention) -> Iterator[CanonicalTensor]:
    """The attention of a layer, as DeepSeek names it."""
    hidden, count, attention = decoder.hidden_size, decoder.num_heads, "self_attn"
    queries = (heads(count, decoder.head_dim),)
    if latent.q_rank:
        yield make.one(layer, f"{attention}.q_a_proj.weight", (latent.q_rank, hidden))
        yield make.one(layer, f"{attention}.q_a_layernorm.weight", (latent.q_rank,))
        yield from make.split_outputs(layer, f"{attention}.q_b_proj", latent.q_rank, queries)
    else:
        yield from make.split_outputs(layer, f"{attention}.q_proj", hidden, queries)
    yield make.one(layer, f"{attention}.kv_a_proj_with_mqa.weight", (latent.kv_rank + latent.rope_dim, hidden))
    yield make.one(layer, f"{attention}.kv_a_layernorm.weight", (latent.kv_rank,))
    keys_and_values = (heads(count, decoder.head_dim - latent.rope_dim + latent.value_dim),)
    yield from make.split_outputs(layer, f"{attention}.kv_b_proj", latent.kv_rank, keys_and_values)
    yield from make.split_inputs(layer, f"{attention}.o_proj", (heads(count, latent.value_dim),), hidden)
