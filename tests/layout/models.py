"""Small models in training.

In the thin ones each tensor is there as one kind of state only, so that rules and kinds meet in many ways at little cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle

from nereus.emu.unit import counter_tensors
from nereus.layout.catalog import StateSpec
from nereus.layout.dense import EMBED, HEAD
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.spec.model import ModelShape
from tests.builders import fused_state, make_model, make_state, thin_state

KINDS = (Kind.EXP_AVG, Kind.PARAMETER, Kind.MASTER, Kind.EXP_AVG_SQ)
VOCAB = 53
"""A prime, as 4999 is: it can be shared out evenly over one rank only."""

NUM_LAYERS = 9
"""Enough for pp 8, and uneven over 2, 4, 5, 6, 7 and 8 pipeline ranks."""


def _each_as_one_kind(parameters: Iterable[CanonicalTensor]) -> list[CanonicalTensor]:
    """Parameters in bfloat16, optimizer state in float32, in turn."""
    return [
        replace(tensor, dtype="bfloat16") if kind is Kind.PARAMETER else tensor.as_kind(kind, "float32")
        for tensor, kind in zip(parameters, cycle(KINDS), strict=False)
    ]


def thin_trained_state(model: ModelShape) -> StateSpec:
    """The thin model with each layer's tensor as one kind of state; the embedding has a moment as well."""
    *parameters, counter = thin_state(model).tensors
    ends = [replace(tensor, dtype="bfloat16") for tensor in parameters if tensor.layer is None]
    layers = _each_as_one_kind(tensor for tensor in parameters if tensor.layer is not None)
    return StateSpec((*ends, ends[0].as_kind(Kind.EXP_AVG, "float32"), *layers, counter), model.num_layers)


def fused_trained_state(num_kv_heads: int) -> StateSpec:
    """Fused q/k/v or gate/up in each layer, and untied embeddings."""

    def end(name: str, place: Place, kind: Kind) -> CanonicalTensor:
        return CanonicalTensor(name, kind, (VOCAB, 3), "float32", place, axis=0, segments=(Segment(VOCAB),))

    fused = fused_state(NUM_LAYERS, num_heads=4 * num_kv_heads, num_kv_heads=num_kv_heads)
    # Of the two tensors of a layer, the one or the other.
    layers = [t for t in fused.tensors if t.layer is not None and t.name.endswith(("qkv", "gate_up")[t.layer % 2])]
    ends = [
        end(EMBED, Place.FIRST, Kind.PARAMETER),
        end(HEAD, Place.LAST, Kind.PARAMETER),
        end(HEAD, Place.LAST, Kind.EXP_AVG_SQ),
    ]
    return StateSpec((*ends, *_each_as_one_kind(layers), counter_tensors()[0]), NUM_LAYERS)


def _model(*, tied: bool, kv_heads: int) -> ModelShape:
    heads = 3 if kv_heads == 3 else 4
    return make_model(num_layers=NUM_LAYERS, num_heads=heads, num_kv_heads=kv_heads, vocab=VOCAB, tied=tied)


MODELS = {
    "tied, 3 kv heads": thin_trained_state(_model(tied=True, kv_heads=3)),
    "fused, 2 kv heads": fused_trained_state(2),
    "untied, 2 kv heads": thin_trained_state(_model(tied=False, kv_heads=2)),
    "fused, 3 kv heads": fused_trained_state(3),
    "all tensors, tied": make_state(_model(tied=True, kv_heads=2), optimizer=True),
    "all tensors, untied": make_state(_model(tied=False, kv_heads=3), optimizer=True),
}
