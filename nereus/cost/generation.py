"""The work of generation: prefill, then token steps that read weights and KV cache, in waves that the KV memory allows.

    steps   = sequences x mean response / concurrent sequences (the waves)  +  longest - mean response (the tail)
    a step  = weights read once, keys and values of every sequence read once, two all-reduces per layer over TP

With a pipeline the batch is cut into one part per rank, and a step takes as many slots as there are ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

from nereus.cost.execution import Execution
from nereus.cost.layer import Architecture
from nereus.cost.operations import CALL_S, FORWARD_CALLS, Amounts, OpClass, amounts
from nereus.cost.training import (
    end_amounts,
    expert_amounts,
    head_amounts,
    hop_latency_s,
    layer_amounts,
    paces,
    product_amounts,
    rank_weight_bytes,
    split_layers,
    tp_amounts,
)
from nereus.cost.volume import Phase, Workload
from nereus.spec.hardware import LinkClass

PREFILL_TOKENS = 8192.0
"""Tokens that engines prefill together by default, several prompts of one batch or a part of a long one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What one stage of generation has to produce, over all replicas."""

    sequences: float
    prompt_tokens: float
    response_tokens: float
    """Mean of a sequence."""
    longest_tokens: float
    """Of all responses: the last one to end."""
    kv_bytes: float = inf
    """Room of one device for keys and values."""
    most_sequences: float = inf
    """Of one replica at a time, whatever the room."""
    kv_item_bytes: float = 2
    reserves: bool = False
    """Whether the engine admits a sequence only with room for all of it (TensorRT-LLM's default) instead of evicting."""
    host_s: float = 0.0
    """Measured seconds that the CPU spends on responses: detokenising, parsing, rewards by rule."""


def kv_token_bytes(run: Execution, model: Architecture, item_bytes: float) -> float:
    """Bytes of the keys and values of one token on one device."""
    return max(split_layers(run, model)) * model.cached_width(run.tp) * item_bytes


def concurrent_sequences(run: Execution, model: Architecture, rollout: Rollout) -> float:
    """Sequences of one replica (or EP rank) that generate together; one that grows as it goes is half grown on average."""
    grown = rollout.response_tokens if rollout.reserves else rollout.response_tokens / 2
    tokens = model.context(rollout.prompt_tokens + grown)
    fits = rollout.kv_bytes / (kv_token_bytes(run, model, rollout.kv_item_bytes) * tokens)
    return max(1.0, min(rollout.sequences / run.shares, rollout.most_sequences, fits))


def generation_workload(run: Execution, model: Architecture, rollout: Rollout) -> Workload:
    """All of the stage, on its busiest replica."""
    sequences = rollout.sequences / run.shares
    concurrent = concurrent_sequences(run, model, rollout)
    mean, steps = rollout.response_tokens, token_steps(sequences, concurrent, rollout)
    batch = sequences * mean / steps
    prefill = prefill_phase(run, model, sequences, rollout.prompt_tokens, concurrent)
    decode = decode_phase(run, model, steps, batch, rollout.prompt_tokens + mean / 2, rollout.kv_item_bytes)
    serial = amounts({OpClass.STEP: run.regime.step_s, OpClass.HOST: rollout.host_s})
    return Workload(phases=(prefill, decode), serial=serial, sharpness=run.regime.sharpness)


def token_steps(sequences: float, concurrent: float, rollout: Rollout) -> float:
    """Token steps until the last response ends.

    The last sequence is admitted when the others have made room, and may be the longest. Where all responses are alike they
    end together instead, and the last wave is a whole one however few are left.
    """
    mean, longest = rollout.response_tokens, max(rollout.longest_tokens, rollout.response_tokens)
    waves, alike = sequences / concurrent, max(0.0, 2.0 - longest / mean)
    return waves * mean + (longest - mean) + alike * (ceil(waves - 1e-9) - waves) * mean


def prefill_phase(
    run: Execution, model: Architecture, sequences: float, prompt_tokens: float, concurrent: float = inf
) -> Phase:
    """The prompts of these sequences, PREFILL_TOKENS at a time; only the last token of each needs logits."""
    together = max(1.0, min(sequences, concurrent, PREFILL_TOKENS / prompt_tokens))
    tokens = together * prompt_tokens
    layer = layer_amounts(replace(run, tokens=prompt_tokens), model, tokens, forwards=1, collectives=1)
    layers, ends = paces(run, model), end_amounts(run, model, tokens, 1)
    head = head_amounts(run, model, together, trains=False)
    calls = amounts({OpClass.DECODE_DISPATCH: FORWARD_CALLS * CALL_S})
    return Phase(
        slots=sequences / together + run.pp - 1,
        device=(*(count * layer + ends for count in layers[:-1]), layers[-1] * layer + ends + head),
        host=tuple((count + run.regime.ends) * calls for count in layers),
        between=_hop(run, model, tokens),
    )


def decode_phase(
    run: Execution, model: Architecture, steps: float, batch: float, context: float, kv_item_bytes: float
) -> Phase:
    """Token steps of `batch` sequences whose mean context is `context` tokens."""
    part, layers = batch / run.pp, paces(run, model)
    layer, head = _decode_layer(run, model, part, context, kv_item_bytes), _decode_head(run, model, part)
    calls = amounts({OpClass.DECODE_DISPATCH: FORWARD_CALLS * CALL_S})
    ends = end_amounts(run, model, part, 1)
    whole = (*(count * layer + ends for count in layers[:-1]), layers[-1] * layer + ends + head)
    return Phase(
        slots=steps * run.pp,
        device=tuple(_without(rank, op) for rank in whole for op in (OpClass.GEMM, OpClass.WEIGHTS)),
        host=tuple((count + run.regime.ends) * calls for count in layers for _ in range(2)),
        between=_hop(run, model, part) + amounts({OpClass.SEQUENCE: part * run.regime.sequence_s}),
    )


def _without(rank: Amounts, op: OpClass) -> Amounts:
    """One side of the roofline: a product takes the longer of its FLOPs and of reading its weights."""
    left = rank.copy()
    left[op.position] = 0.0
    return left


def _decode_layer(run: Execution, model: Architecture, batch: float, context: float, kv_item_bytes: float) -> Amounts:
    device, seen = run.hardware.accelerator, model.context(context)
    products = amounts({})
    for product in model.products(run.tp):
        products += product_amounts(run, batch, product.inner, product.outer)
    products[OpClass.GEMM_BYTES.position] = 0.0
    mlp = model.mlp_matrices * model.decoder.hidden_size / run.tp
    attention = sum(product.inner * product.outer for product in model.products(run.tp)) - mlp * model.active_ffn
    weights = attention + mlp * model.read_ffn(batch, run.ep)
    read_s = batch * seen * model.cached_width(run.tp) * kv_item_bytes / device.memory_bytes_s
    product_s = batch * seen * 2 * (model.query_width + model.value_width) / run.tp / device.flops_s(run.dtype)
    return products + amounts(
        {
            OpClass.WEIGHTS: weights * run.weight_bytes / device.memory_bytes_s,
            # Attention of one token reads for longer than it computes, but where no bandwidth of the memory is known.
            **({OpClass.KV_READ: read_s} if read_s > product_s else {OpClass.ATTENTION: product_s}),
            OpClass.ELEMENTWISE: batch * run.item_bytes * model.elementwise(run.tp, 1) / device.memory_bytes_s,
            **tp_amounts(run, batch * model.decoder.hidden_size, 2),
            **expert_amounts(run, model, batch, 1),
        }
    )


def _decode_head(run: Execution, model: Architecture, batch: float) -> Amounts:
    """Logits of one token of each sequence: the head is read once."""
    head = head_amounts(run, model, batch, trains=False)
    head[OpClass.GEMM_BYTES.position] = 0.0
    read = model.end_parameters(run.tp) * run.item_bytes / run.hardware.accelerator.memory_bytes_s
    return head + amounts({OpClass.WEIGHTS: read})


def _hop(run: Execution, model: Architecture, tokens: float) -> Amounts:
    """Hidden states to the next pipeline rank."""
    if run.pp == 1:
        return amounts({})
    link = run.hardware.link(run.tp * run.ep * run.pp)
    size = tokens * model.decoder.hidden_size * run.item_bytes / run.hardware.bytes_s(link) + hop_latency_s(run, link)
    return amounts({OpClass.SEND_NODE if link is LinkClass.NODE else OpClass.SEND_NETWORK: size})


def kv_room_bytes(run: Execution, model: Architecture, capacity_bytes: float, kept_bytes: float = 0.0) -> float:
    """What a device has left for keys and values beside the weights; negative where these do not fit."""
    weights = max(rank_weight_bytes(run, model, rank) for rank in range(run.pp))
    return capacity_bytes - weights - kept_bytes
