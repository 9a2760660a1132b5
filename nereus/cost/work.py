"""What a model-stage has to do, from shapes: FLOPs, calls and messages of its slowest rank.

    StagePlan, Batch -> Work        rates (rates.py) turn Work into seconds (step.py)

A call is one layer's forward of one micro-batch or token step: what is paid per call does not depend on its size. FLOPs of a
product count two per multiply-add; a backward is twice its forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from nereus.cost.batch import Batch
from nereus.emu.plan import StagePlan
from nereus.layout.layout import Layout
from nereus.layout.tensors import ITEM_BYTES, Segment, pipeline_layers
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING

OPTIMIZER_CALLS = 3
"""Calls per layer of one AdamW update: about 70 small operations on the nine tensors of a layer, a forward has 25."""


class OpClass(StrEnum):
    """Operations that share one efficiency and one floor."""

    DECODE = "decode"
    """Token steps through a KV cache."""
    FORWARD = "forward"
    """Forward passes over whole sequences."""
    TRAIN = "train"
    """Forward and backward passes, and the optimizer."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one model-stage in one RL step, on its slowest rank."""

    op_class: OpClass
    flops: float
    """Of the passes of one rank, pipeline bubbles included."""
    calls: float
    """Likewise."""
    reduces: float
    """Collectives over the TP group on the way, one after the other."""
    reduce_bytes: float
    """Bytes of each of them."""
    hops: float
    """Sends between pipeline ranks on the way."""
    hop_bytes: float
    """Bytes of each of them."""
    gradient_reduces: int
    """Collectives over the DP group."""
    gradient_bytes: float
    """Bytes of each of them."""


def op_class(stage: str) -> OpClass:
    """The class of a model-stage's operations."""
    if stage == ACTOR_GENERATION:
        return OpClass.DECODE
    return OpClass.TRAIN if stage == ACTOR_TRAINING else OpClass.FORWARD


def stage_work(stage: StagePlan, model: ModelShape, dtype: str, batch: Batch) -> Work:
    """The work of a model-stage under a plan."""
    kind = op_class(stage.stage)
    if kind is OpClass.DECODE:
        return _generation(stage, model, dtype, batch)
    return _passes(stage, model, dtype, batch, trains=kind is OpClass.TRAIN)


def _passes(stage: StagePlan, model: ModelShape, dtype: str, batch: Batch, *, trains: bool) -> Work:
    """Micro-batches through the pipeline: scoring (forward) or training (forward and backward, 1F1B)."""
    layout, item = stage.layout, ITEM_BYTES[dtype]
    rows = batch.rows(stage.dp, trains=trains)
    micro = min(stage.micro_batch, rows)
    updates = batch.updates if trains else 1
    passes, slots = (3 if trains else 1), (ceil(rows / micro) + layout.pp - 1) * updates
    last = layout.pp - 1
    layers = max(len(pipeline_layers(model.num_layers, layout.pp, p)) for p in range(layout.pp))
    last_layers = len(pipeline_layers(model.num_layers, layout.pp, last))
    body = micro * batch.length * _layer_flops(model, layout, batch.length / 2)
    head = micro * batch.response_tokens * _head_flops(model, layout)
    flops = max(layers * body, last_layers * body + head)
    hidden_bytes = micro * batch.length * model.hidden_size * item
    return Work(
        op_class=OpClass.TRAIN if trains else OpClass.FORWARD,
        flops=slots * passes * flops,
        calls=slots * passes * (layers + 1) + (updates * OPTIMIZER_CALLS * layers if trains else 0),
        reduces=(slots * (2 if trains else 1) * (2 * layers + 2)) if layout.tp > 1 else 0,
        reduce_bytes=hidden_bytes,
        hops=slots * (2 if trains else 1) if layout.pp > 1 else 0,
        hop_bytes=hidden_bytes,
        gradient_reduces=updates if trains and stage.dp > 1 else 0,
        gradient_bytes=max(parameter_count(model, layout, p) for p in range(layout.pp)) * item,
    )


def _generation(stage: StagePlan, model: ModelShape, dtype: str, batch: Batch) -> Work:
    """Waves of prefill and token steps through a KV cache."""
    layout = stage.layout
    rows = batch.rows(stage.dp, trains=False)
    wave = min(stage.micro_batch, rows)
    steps = ceil(rows / wave) * batch.response_tokens
    per_token = model.num_layers * _layer_flops(model, layout, batch.length / 2)
    flops = rows * (batch.length * per_token + batch.response_tokens * _head_flops(model, layout))
    return Work(
        op_class=OpClass.DECODE,
        flops=flops,
        calls=steps * (model.num_layers + 1),
        reduces=steps * (2 * model.num_layers + 2) if layout.tp > 1 else 0,
        reduce_bytes=wave * model.hidden_size * ITEM_BYTES[dtype],
        hops=0,
        hop_bytes=0,
        gradient_reduces=0,
        gradient_bytes=0,
    )


def _layer_flops(model: ModelShape, layout: Layout, context: float) -> float:
    """Forward FLOPs of one token through one layer on one TP rank; `context` tokens are attended to."""
    queries = _share(model.num_heads, layout.tp) * model.head_dim
    keys = _share(model.num_kv_heads, layout.tp) * model.head_dim
    ffn = _share(model.ffn_size, layout.tp)
    products = model.hidden_size * (2 * queries + 2 * keys + 3 * ffn)
    return 2.0 * products + 4.0 * context * queries


def _head_flops(model: ModelShape, layout: Layout) -> float:
    return 2.0 * model.hidden_size * _share(model.vocab_size, layout.tp)


def parameter_count(model: ModelShape, layout: Layout, pp_rank: int) -> int:
    """Parameters of one rank, approximately: what a gradient all-reduce carries."""
    layers = len(pipeline_layers(model.num_layers, layout.pp, pp_rank))
    ends = 2 if layout.pp == 1 and not model.tie_embeddings else 1
    per_layer = _layer_flops(model, layout, 0) / 2 + 2 * model.hidden_size
    return round(layers * per_layer + ends * model.hidden_size * _share(model.vocab_size, layout.tp))


def _share(length: int, tp: int) -> int:
    """The largest part of an axis: that of the slowest TP rank."""
    segment = Segment(length)
    return max(high - low for low, high in (segment.span(tp, rank) for rank in range(tp)))
