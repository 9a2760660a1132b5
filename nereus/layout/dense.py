"""The canonical tensors of a decoder, under their HF names.

Column-parallel tensors (q, k, v, gate, up, embeddings, head) are cut on their rows, row-parallel ones (o, down) on their
columns; norms are whole on every TP rank. Heads are never cut through: their grain is the head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator

from nereus.errors import TensorRuleError
from nereus.layout.catalog import StateSpec
from nereus.layout.experts import expert_tensors
from nereus.layout.gpt2 import gpt2_parameters
from nereus.layout.latent import latent_attention
from nereus.layout.parameters import LayerTensors, at_end, heads
from nereus.layout.phi import phi_parameters
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.spec.decoder import Decoder, QkNorm
from nereus.spec.families import FAMILIES
from nereus.spec.model import ModelShape

EMBED = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
LAYERS = "model.layers"

FUSED = frozenset(("phi3",))
"""Families that have q, k and v in one matrix, and gate and up in another."""

OTHERWISE = {"gpt2": gpt2_parameters, "phi": phi_parameters}
"""Families whose tensors are not those of Llama with more or fewer of them."""

HALF = frozenset(("bfloat16", "float16"))
"""Dtypes that are trained in mixed precision: each parameter has a float32 master, which AdamW updates."""


def layer_name(layer: int, part: str) -> str:
    """The HF name of a layer's tensor, such as part `self_attn.q_proj`."""
    return f"{LAYERS}.{layer}.{part}.weight"


def dense_parameters(model: ModelShape | Decoder, dtype: str) -> tuple[CanonicalTensor, ...]:
    """All parameters of the model, in pipeline order. A tied head is the embedding, on both ends of the pipeline.

    Raises TensorRuleError for a family that is planned and not moved.
    """
    decoder = _decoder(model)
    family = FAMILIES.get(decoder.family)
    if family is None or family.unmoved is not None:
        raise TensorRuleError(f"the tensors of {decoder.family} have no rule")
    if decoder.family in OTHERWISE:
        return OTHERWISE[decoder.family](decoder, dtype)
    rows = (decoder.vocab_size, decoder.hidden_size)
    tensors = [at_end(Place.ENDS if decoder.tied else Place.FIRST, EMBED, rows, dtype, cut=True)]
    make = LayerTensors(dtype, LAYERS)
    for layer in range(decoder.num_layers):
        norms = [make.one(layer, f"{norm}.weight", (decoder.hidden_size,)) for norm in decoder.norms]
        tensors += [*norms[:1], *_attention(make, layer, decoder), *norms[1:], *_mlp(make, layer, decoder)]
    if decoder.final_norm:
        tensors.append(at_end(Place.LAST, NORM, (decoder.hidden_size,), dtype))
    if not decoder.tied:
        tensors.append(at_end(Place.LAST, HEAD, rows, dtype, cut=True))
    return tuple(tensors)


def _attention(make: LayerTensors, layer: int, decoder: Decoder) -> Iterator[CanonicalTensor]:
    """Projections, and what some families have besides: norms of queries and keys, whole on every rank, and sinks."""
    if decoder.latent is not None:
        yield from latent_attention(make, layer, decoder, decoder.latent)
        return
    q, kv = heads(decoder.num_heads, decoder.head_dim), heads(decoder.num_kv_heads, decoder.head_dim)
    if decoder.family in FUSED:
        yield from make.split_outputs(layer, "self_attn.qkv_proj", decoder.hidden_size, (q, kv, kv), bias=decoder.qkv_bias)
    else:
        yield from _projections(make, layer, decoder, q, kv)
    yield from make.split_inputs(layer, "self_attn.o_proj", (q,), decoder.hidden_size, bias=decoder.out_bias)
    if decoder.qk_norm is not QkNorm.NONE:
        for name, segment in (("q", q), ("k", kv)):
            size = decoder.head_dim if decoder.qk_norm is QkNorm.HEAD else segment.length
            yield make.one(layer, f"self_attn.{name}_norm.weight", (size,))
    if decoder.sinks:
        yield make.one(layer, "self_attn.sinks", (decoder.num_heads,), 0, (Segment(decoder.num_heads),))


def _projections(make: LayerTensors, layer: int, decoder: Decoder, q: Segment, kv: Segment) -> Iterator[CanonicalTensor]:
    for name, segment in (("q", q), ("k", kv), ("v", kv)):
        part = f"self_attn.{name}_proj"
        yield from make.split_outputs(layer, part, decoder.hidden_size, (segment,), bias=decoder.qkv_bias)


def _mlp(make: LayerTensors, layer: int, decoder: Decoder) -> Iterator[CanonicalTensor]:
    """The gated MLP of a layer, or its experts."""
    if decoder.experts is not None and layer in decoder.experts.layers:
        yield from expert_tensors(make, layer, decoder, decoder.experts)
        return
    hidden, width, bias = decoder.hidden_size, (Segment(decoder.ffn_size),), decoder.mlp_bias
    if decoder.family in FUSED:
        yield from make.split_outputs(layer, "mlp.gate_up_proj", hidden, width * 2, bias=bias)
    else:
        yield from make.split_outputs(layer, "mlp.gate_proj", hidden, width, bias=bias)
        yield from make.split_outputs(layer, "mlp.up_proj", hidden, width, bias=bias)
    yield from make.split_inputs(layer, "mlp.down_proj", width, hidden, bias=bias)


def trained(parameters: tuple[CanonicalTensor, ...]) -> tuple[CanonicalTensor, ...]:
    """Parameters with their AdamW moments; those of half precision with a float32 master, and moments in float32."""
    masters = tuple(p.as_kind(Kind.MASTER, "float32") for p in parameters if p.dtype in HALF)
    moments = (
        p.as_kind(kind, "float32" if p.dtype in HALF else p.dtype)
        for kind in (Kind.EXP_AVG, Kind.EXP_AVG_SQ)
        for p in parameters
    )
    return (*parameters, *masters, *moments)


def state_spec(
    model: ModelShape | Decoder, dtype: str, counters: tuple[CanonicalTensor, ...], *, optimizer: bool
) -> StateSpec:
    """The logical state of a model-stage: parameters, optimizer state if it trains, counters."""
    parameters = dense_parameters(model, dtype)
    return StateSpec((*(trained(parameters) if optimizer else parameters), *counters), _decoder(model).num_layers)


def _decoder(model: ModelShape | Decoder) -> Decoder:
    return model if isinstance(model, Decoder) else model.decoder
