"""Peak memory of a plan on each device, by component, from shapes alone.

    peak(device) = state of every unit on it + max over its model-stages of what is live while one computes

    training     gradients + activations of the micro-batches in flight + pipeline sends
    inference    logits of one micro-batch + pipeline sends
    generation   KV cache of one wave

Counts what the ledger counts. A first cut: it covers the native job; calibration and other models come with the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from nereus.cost.batch import Batch
from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import Layout
from nereus.layout.tensors import ITEM_BYTES, Kind, Segment, pipeline_layers
from nereus.spec.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one model-stage on one device."""

    state: int
    """Parameters, moments and counters: there while the unit is."""
    live: int
    """On top while it computes."""


def predicted_peaks(
    plan: Plan, states: Mapping[str, StateSpec], model: Decoder, dtype: str, batch: Batch
) -> dict[DeviceId, int]:
    """Peak bytes of every device over one RL step of the plan (Mem_peak of Eq. (1), before headroom)."""
    state: dict[DeviceId, int] = {}
    live: dict[DeviceId, int] = {}
    for name, stage in plan.stages.items():
        for group in stage.groups:
            for rank, device in enumerate(group):
                footprint = stage_footprint(stage, rank, states[name], model, dtype, batch)
                state[device] = state.get(device, 0) + footprint.state
                live[device] = max(live.get(device, 0), footprint.live)
    return {device: state[device] + live[device] for device in sorted(state)}


def stage_footprint(stage: StagePlan, rank: int, state: StateSpec, model: Decoder, dtype: str, batch: Batch) -> Footprint:
    """The bytes of one rank of a model-stage."""
    layout, item = stage.layout, ITEM_BYTES[dtype]
    trains = any(tensor.kind is Kind.EXP_AVG for tensor in state.tensors)
    rows = batch.rows(stage.dp, trains=trains)
    micro = min(stage.micro_batch, rows)
    if trains:
        in_flight = min(rows, micro * (layout.pp - layout.coordinate(rank).pp))
        live = state.shard_bytes(layout, rank, Kind.PARAMETER) + item * (
            _activations(model, layout, rank, in_flight, batch) + _sends(model, layout, rank, rows, batch)
        )
    elif stage.stage.endswith("generation"):
        live = item * _kv_cache(model, layout, rank, micro, batch)
    else:
        logits = _is_last(layout, rank) * micro * ceil(batch.response_tokens) * _vocabulary(model, layout, rank)
        live = item * (logits + _sends(model, layout, rank, rows, batch, both_ways=False))
    return Footprint(state.shard_bytes(layout, rank), live)


def _activations(model: Decoder, layout: Layout, rank: int, rows: int, batch: Batch) -> int:
    """Elements that autograd keeps for these rows.

    Per token and layer: of two norms the input, the normalised input and the output (6 h); queries, repeated keys and
    values, the output of attention twice, since the product after it wants another order (5 q), and its log-sum per head;
    of the gated MLP both products, the gate's activation and what goes down (4 f). Per token: cos and sin. On the last
    rank, per response token: the same three of the final norm, and two values per local logit.
    """
    at = layout.coordinate(rank)
    heads = _width(model.num_heads, layout, rank)
    queries = heads * model.head_dim
    ffn = _span(Segment(model.ffn_size), layout, rank)
    layers = len(pipeline_layers(model.num_layers, layout.pp, at.pp))
    total = rows * ceil(batch.length) * (layers * (6 * model.hidden_size + 5 * queries + 4 * ffn + heads) + model.head_dim)
    if _is_last(layout, rank):
        head = 3 * model.hidden_size + 2 * _vocabulary(model, layout, rank)
        total += rows * ceil(batch.response_tokens) * head
    return total


def _sends(model: Decoder, layout: Layout, rank: int, rows: int, batch: Batch, *, both_ways: bool = True) -> int:
    """Elements of the hidden states (and their gradients) that a pass has sent: their buffers live until it ends."""
    at = layout.coordinate(rank)
    neighbours = (at.pp + 1 < layout.pp) + (both_ways and at.pp > 0)
    return neighbours * rows * ceil(batch.length) * model.hidden_size


def _kv_cache(model: Decoder, layout: Layout, rank: int, wave: int, batch: Batch) -> int:
    heads = max(1, _width(model.num_kv_heads, layout, rank))
    layers = len(pipeline_layers(model.num_layers, layout.pp, layout.coordinate(rank).pp))
    return 2 * layers * wave * heads * model.head_dim * ceil(batch.length)


def _vocabulary(model: Decoder, layout: Layout, rank: int) -> int:
    return _span(Segment(model.vocab_size), layout, rank)


def _width(heads: int, layout: Layout, rank: int) -> int:
    return _span(Segment(heads), layout, rank)


def _span(segment: Segment, layout: Layout, rank: int) -> int:
    low, high = segment.span(layout.tp, layout.coordinate(rank).tp)
    return high - low


def _is_last(layout: Layout, rank: int) -> bool:
    return layout.coordinate(rank).pp == layout.pp - 1
