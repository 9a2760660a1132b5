"""The canonical tensors of GPT-2: LayerNorms and matrices with biases, q/k/v in one matrix, learnt positions."""

from __future__ import annotations

from collections.abc import Iterator

from nereus.layout.parameters import LayerTensors, at_end, heads
from nereus.layout.tensors import CanonicalTensor, Place, Segment
from nereus.spec.decoder import Decoder

EMBED = "transformer.wte.weight"
POSITIONS = "transformer.wpe.weight"
HEAD = "lm_head.weight"


def gpt2_parameters(decoder: Decoder, dtype: str) -> tuple[CanonicalTensor, ...]:
    """All parameters, in pipeline order."""
    hidden = decoder.hidden_size
    first = Place.ENDS if decoder.tied else Place.FIRST
    tensors = [
        at_end(first, EMBED, (decoder.vocab_size, hidden), dtype, cut=True),
        at_end(Place.FIRST, POSITIONS, (decoder.num_positions, hidden), dtype),
    ]
    make = LayerTensors(dtype, "transformer.h", transposed=True)
    for layer in range(decoder.num_layers):
        tensors += _layer(make, layer, decoder)
    tensors += [at_end(Place.LAST, f"transformer.ln_f.{part}", (hidden,), dtype) for part in ("weight", "bias")]
    if not decoder.tied:
        tensors.append(at_end(Place.LAST, HEAD, (decoder.vocab_size, hidden), dtype, cut=True))
    return tuple(tensors)


def _layer(make: LayerTensors, layer: int, decoder: Decoder) -> Iterator[CanonicalTensor]:
    hidden, width = decoder.hidden_size, (Segment(decoder.ffn_size),)
    q_k_v = (heads(decoder.num_heads, decoder.head_dim),) * 3
    for norm in decoder.norms:
        yield make.one(layer, f"{norm}.weight", (hidden,))
        yield make.one(layer, f"{norm}.bias", (hidden,))
    yield from make.split_outputs(layer, "attn.c_attn", hidden, q_k_v, bias=decoder.qkv_bias)
    yield from make.split_inputs(layer, "attn.c_proj", q_k_v[:1], hidden, bias=decoder.out_bias)
    yield from make.split_outputs(layer, "mlp.c_fc", hidden, width, bias=decoder.mlp_bias)
    yield from make.split_inputs(layer, "mlp.c_proj", width, hidden, bias=decoder.mlp_bias)
