"""The canonical tensors of Phi: one LayerNorm for attention and MLP, biases everywhere, and a head with a bias."""

from __future__ import annotations

from collections.abc import Iterator

from nereus.layout.parameters import LayerTensors, at_end, heads
from nereus.layout.tensors import CanonicalTensor, Place, Segment
from nereus.spec.decoder import Decoder


def phi_parameters(decoder: Decoder, dtype: str) -> tuple[CanonicalTensor, ...]:
    """All parameters, in pipeline order."""
    rows = (decoder.vocab_size, decoder.hidden_size)
    tensors = [at_end(Place.ENDS if decoder.tied else Place.FIRST, "model.embed_tokens.weight", rows, dtype, cut=True)]
    make = LayerTensors(dtype, "model.layers")
    for layer in range(decoder.num_layers):
        tensors += _layer(make, layer, decoder)
    tensors += [at_end(Place.LAST, f"model.final_layernorm.{part}", rows[1:], dtype) for part in ("weight", "bias")]
    if not decoder.tied:
        tensors.append(at_end(Place.LAST, "lm_head.weight", rows, dtype, cut=True))
    tensors.append(at_end(Place.LAST, "lm_head.bias", rows[:1], dtype, cut=True))
    return tuple(tensors)


def _layer(make: LayerTensors, layer: int, decoder: Decoder) -> Iterator[CanonicalTensor]:
    hidden, width = decoder.hidden_size, (Segment(decoder.ffn_size),)
    q, kv = heads(decoder.num_heads, decoder.head_dim), heads(decoder.num_kv_heads, decoder.head_dim)
    for part in ("weight", "bias"):
        yield make.one(layer, f"input_layernorm.{part}", (hidden,))
    for name, segment in (("q", q), ("k", kv), ("v", kv)):
        yield from make.split_outputs(layer, f"self_attn.{name}_proj", hidden, (segment,), bias=True)
    yield from make.split_inputs(layer, "self_attn.dense", (q,), hidden, bias=True)
    yield from make.split_outputs(layer, "mlp.fc1", hidden, width, bias=True)
    yield from make.split_inputs(layer, "mlp.fc2", width, hidden, bias=True)
