"""Memory of the native job on each device, by component and to the byte: what its ledger counts, from shapes alone.

training     gradients + activations of the micro-batches in flight + logits + pipeline sends
             recomputed: what enters the layers + the larger of one layer's activations and the logits
inference    logits of one micro-batch + pipeline sends
generation   KV cache of one wave

The state of a unit (parameters, moments, counters) is what its canonical tensors say.
"""

from __future__ import annotations

from math import ceil

from nereus.cost.batch import Batch
from nereus.cost.components import Component, Footprint
from nereus.emu.plan import StagePlan
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import Layout
from nereus.layout.tensors import ITEM_BYTES, Kind, Segment, pipeline_layers
from nereus.spec.decoder import Decoder
from nereus.spec.stages import role_of


def ledger_footprint(stage: StagePlan, rank: int, state: StateSpec, model: Decoder, dtype: str, batch: Batch) -> Footprint:
    """The bytes of one rank of a model-stage."""
    layout, item, role = stage.layout, ITEM_BYTES[dtype], role_of(stage.stage)
    trains = role == "training"
    rows = batch.rows(stage.dp, trains=trains)
    micro = min(stage.micro_batch, rows)
    parameters = state.shard_bytes(layout, rank, Kind.PARAMETER)
    found = {Component.PARAMETERS: parameters, Component.OPTIMIZER: state.shard_bytes(layout, rank) - parameters}
    if role == "generation":
        return Footprint({**found, Component.KV_CACHE: item * _kv_cache(model, layout, rank, micro, batch)})
    scored = ceil(batch.response_tokens) * _is_last(layout, rank)
    logits, sends = _vocabulary(model, layout, rank), _sends(model, layout, rank, rows, batch, both_ways=trains)
    if trains:
        in_flight = min(rows, micro * (layout.pp - layout.coordinate(rank).pp))
        found[Component.GRADIENTS] = parameters
        found[Component.LOGITS] = item * in_flight * scored * (3 * model.hidden_size + 2 * logits)
        found[Component.ACTIVATIONS] = item * _activations(model, layout, rank, in_flight, batch)
        if stage.recompute:
            again = item * micro * ceil(batch.length) * (_layer(model, layout, rank) - model.hidden_size)
            # The backward of the logits is over, and what it kept is free, before that of the last layer begins.
            again = max(0, again - found[Component.LOGITS])
            found[Component.ACTIVATIONS] = again + item * _entered(model, layout, rank, in_flight, batch)
    else:
        found[Component.LOGITS] = item * micro * scored * logits
    return Footprint({**found, Component.SENDS: item * sends})


def _activations(model: Decoder, layout: Layout, rank: int, rows: int, batch: Batch) -> int:
    """Elements that autograd keeps for these rows: per token all layers' and cos and sin.

    Logits count apart: on the last rank, per response token, three of the final norm, and two values per local logit.
    """
    token = _num_layers(model, layout, rank) * _layer(model, layout, rank) + model.head_dim
    return rows * ceil(batch.length) * token


def _layer(model: Decoder, layout: Layout, rank: int) -> int:
    """Elements that autograd keeps of one layer for one token.

    Of two norms the input, the normalised input and the output (6 h); queries, repeated keys and values, the output of
    attention twice, since the product after it wants another order (5 q), and its log-sum per head; of the gated MLP both
    products, the gate's activation and what goes down (4 f).
    """
    heads = _width(model.num_heads, layout, rank)
    ffn = _span(Segment(model.ffn_size), layout, rank)
    return 6 * model.hidden_size + 5 * heads * model.head_dim + 4 * ffn + heads


def _entered(model: Decoder, layout: Layout, rank: int, rows: int, batch: Batch) -> int:
    """Elements that are kept for these rows where layers are recomputed: what enters each, and cos and sin."""
    token = _num_layers(model, layout, rank) * model.hidden_size + model.head_dim
    return rows * ceil(batch.length) * token


def _num_layers(model: Decoder, layout: Layout, rank: int) -> int:
    return len(pipeline_layers(model.num_layers, layout.pp, layout.coordinate(rank).pp))


def _sends(model: Decoder, layout: Layout, rank: int, rows: int, batch: Batch, *, both_ways: bool) -> int:
    """Elements of the hidden states (and their gradients) that a pass has sent: their buffers live until it ends."""
    at = layout.coordinate(rank)
    neighbours = (at.pp + 1 < layout.pp) + (both_ways and at.pp > 0)
    return neighbours * rows * ceil(batch.length) * model.hidden_size


def _kv_cache(model: Decoder, layout: Layout, rank: int, wave: int, batch: Batch) -> int:
    heads = max(1, _width(model.num_kv_heads, layout, rank))
    return 2 * _num_layers(model, layout, rank) * wave * heads * model.head_dim * ceil(batch.length)


def _vocabulary(model: Decoder, layout: Layout, rank: int) -> int:
    return _span(Segment(model.vocab_size), layout, rank)


def _width(heads: int, layout: Layout, rank: int) -> int:
    return _span(Segment(heads), layout, rank)


def _span(segment: Segment, layout: Layout, rank: int) -> int:
    low, high = segment.span(layout.tp, layout.coordinate(rank).tp)
    return high - low


def _is_last(layout: Layout, rank: int) -> bool:
    return layout.coordinate(rank).pp == layout.pp - 1
