"""The canonical tensors of a dense decoder, under their HF names.

Column-parallel tensors (q, k, v, gate, up, embeddings, head) are cut on their rows, row-parallel ones (o, down) on their
columns; norms are whole on every TP rank. Heads are never cut through: their grain is the head dimension.
"""

from __future__ import annotations

from nereus.layout.catalog import StateSpec
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.spec.model import ModelShape

EMBED = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def layer_name(layer: int, part: str) -> str:
    """The HF name of a layer's tensor, such as part `self_attn.q_proj`."""
    return f"model.layers.{layer}.{part}.weight"


def dense_parameters(model: ModelShape, dtype: str) -> tuple[CanonicalTensor, ...]:
    """All parameters of the model, in pipeline order. A tied head is the embedding, on both ends of the pipeline."""
    hidden, heads = model.hidden_size, model.num_heads * model.head_dim
    kv, vocab = model.num_kv_heads * model.head_dim, (Segment(model.vocab_size),)

    def at(place: Place, name: str, shape: tuple[int, ...], *segments: Segment) -> CanonicalTensor:
        return CanonicalTensor(name, Kind.PARAMETER, shape, dtype, place, axis=0 if segments else None, segments=segments)

    def of(layer: int, part: str, shape: tuple[int, ...], axis: int | None, *segments: Segment) -> CanonicalTensor:
        return CanonicalTensor(layer_name(layer, part), Kind.PARAMETER, shape, dtype, Place.LAYER, layer, axis, segments)

    tensors = [at(Place.ENDS if model.tie_embeddings else Place.FIRST, EMBED, (model.vocab_size, hidden), *vocab)]
    for layer in range(model.num_layers):
        tensors += [
            of(layer, "input_layernorm", (hidden,), None),
            of(layer, "self_attn.q_proj", (heads, hidden), 0, Segment(heads, model.head_dim)),
            of(layer, "self_attn.k_proj", (kv, hidden), 0, Segment(kv, model.head_dim)),
            of(layer, "self_attn.v_proj", (kv, hidden), 0, Segment(kv, model.head_dim)),
            of(layer, "self_attn.o_proj", (hidden, heads), 1, Segment(heads, model.head_dim)),
            of(layer, "post_attention_layernorm", (hidden,), None),
            of(layer, "mlp.gate_proj", (model.ffn_size, hidden), 0, Segment(model.ffn_size)),
            of(layer, "mlp.up_proj", (model.ffn_size, hidden), 0, Segment(model.ffn_size)),
            of(layer, "mlp.down_proj", (hidden, model.ffn_size), 1, Segment(model.ffn_size)),
        ]
    tensors.append(at(Place.LAST, NORM, (hidden,)))
    if not model.tie_embeddings:
        tensors.append(at(Place.LAST, HEAD, (model.vocab_size, hidden), *vocab))
    return tuple(tensors)


def trained(parameters: tuple[CanonicalTensor, ...]) -> tuple[CanonicalTensor, ...]:
    """Parameters with their AdamW moments."""
    moments = (p.as_kind(kind, p.dtype) for kind in (Kind.EXP_AVG, Kind.EXP_AVG_SQ) for p in parameters)
    return (*parameters, *moments)


def state_spec(model: ModelShape, dtype: str, counters: tuple[CanonicalTensor, ...], *, optimizer: bool) -> StateSpec:
    """The logical state of a model-stage: parameters, moments if it trains, counters."""
    parameters = dense_parameters(model, dtype)
    return StateSpec((*(trained(parameters) if optimizer else parameters), *counters), model.num_layers)
