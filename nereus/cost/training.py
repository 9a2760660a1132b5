"""The work of a training update, and of inference: the forward alone.

slots       m micro-batches + pp - 1 of bubble (1F1B), at the pace of the slowest pipeline rank
one slot    forward (1), backward (2), recomputation (1) of a rank's layers, the head on the last rank
after it    DP: all-reduce of gradients, or reduce-scatter and all-gather (ZeRO-1); the optimizer step
"""

from __future__ import annotations

from collections.abc import Mapping

from nereus.cost.execution import Execution, Offload, Recompute
from nereus.cost.layer import Architecture
from nereus.cost.operations import CALL_S, FORWARD_CALLS, STALL_S, Amounts, OpClass, amounts
from nereus.cost.pipeline import balanced_split, even_split
from nereus.cost.volume import Phase, Workload, nothing
from nereus.spec.hardware import LATENCY_S, LinkClass

BACKWARD = 2
"""Forwards that a backward is worth, in products, attention and bytes."""

LOGIT_BYTES = 20
"""Bytes read and written per local logit of the loss: to float32 (2 + 4), softmax (4), gradient (4 + 4), back (2)."""

OPTIMIZER_BYTES = 30
"""Bytes that AdamW reads and writes per parameter it updates: master, two moments, gradient and parameter."""

OFFLOADED_BYTES = 24
"""Bytes over the link to the host per parameter whose optimizer state is kept there: a float32 master and two float32
moments, to the device and back. The step itself is the device's."""

GRADIENT_PASS_BYTES = 6
"""Bytes per parameter of the passes over all gradients: the norm, and setting them to zero."""

SCORE_ACCESSES = 6
"""Times that a forward reads or writes a score that goes through memory: written by the first product, read and written by
softmax and by dropout, read by the second product."""

_TP = {
    LinkClass.NODE: (OpClass.TP_NODE, OpClass.TP_LATENCY_NODE),
    LinkClass.NETWORK: (OpClass.TP_NETWORK, OpClass.TP_LATENCY_NETWORK),
}
_EXPERTS = {LinkClass.NODE: OpClass.EXPERTS_NODE, LinkClass.NETWORK: OpClass.EXPERTS_NETWORK}
_SEND = {LinkClass.NODE: OpClass.SEND_NODE, LinkClass.NETWORK: OpClass.SEND_NETWORK}
_REDUCE = {LinkClass.NODE: OpClass.REDUCE_NODE, LinkClass.NETWORK: OpClass.REDUCE_NETWORK}
_SCATTER = {LinkClass.NODE: OpClass.SCATTER_NODE, LinkClass.NETWORK: OpClass.SCATTER_NETWORK}


def training_workload(run: Execution, model: Architecture, *, near_capacity: bool = False) -> Workload:
    """One optimizer update. `near_capacity`: the predicted peak is over the headroom (a regime may then stall)."""
    recomputed = 1 if run.recompute is Recompute.FULL else 0
    phase = _phase(run, model, passes=1 + BACKWARD, forwards=1 + BACKWARD + recomputed, collectives=2 + recomputed)
    stalled = run.replicated_stall or (run.regime.stalls_near_capacity and near_capacity)
    between = phase.between + amounts({OpClass.STALL: STALL_S * min(run.pp - 1, 2) * stalled})
    sync, serial = _sync(run, model), _optimizer(run, model) + amounts({OpClass.STEP: run.regime.step_s})
    hidden = run.regime.overlaps_gradients
    return Workload(
        phases=(Phase(phase.slots, phase.device, phase.host, between),),
        serial=serial if hidden else serial + sync,
        hidden=sync if hidden else nothing(),
        hides=BACKWARD / (1 + BACKWARD) if hidden else 0.0,
        sharpness=run.regime.sharpness,
    )


def inference_workload(run: Execution, model: Architecture) -> Workload:
    """Forward passes over whole sequences: log-probabilities, values or rewards."""
    phase = _phase(run, model, passes=1, forwards=1, collectives=1)
    serial = amounts({OpClass.STEP: run.regime.step_s})
    if run.offload is Offload.PARAMETERS:
        moved = rank_weight_bytes(run, model, fullest_rank(run, model))
        serial += amounts({OpClass.OFFLOAD: moved / run.hardware.accelerator.host_bytes_s})
    return Workload(phases=(phase,), serial=serial, sharpness=run.regime.sharpness)


def split_layers(run: Execution, model: Architecture) -> tuple[int, ...]:
    """Layers of each pipeline rank."""
    if run.regime.head_balanced:
        return balanced_split(model.decoder.num_layers, run.pp, model.head_layers)
    return even_split(model.decoder.num_layers, run.pp)


def paces(run: Execution, model: Architecture) -> tuple[int, ...]:
    """Layers of each kind of pipeline rank that may be the slowest: the longest without the head, and the last."""
    split = split_layers(run, model)
    return (max(split[:-1]), split[-1]) if run.pp > 1 else split


def rank_parameters(run: Execution, model: Architecture, rank: int) -> float:
    """Parameters of one pipeline rank's devices; a tied head counts on the last rank too where that is another one."""
    layers = split_layers(run, model)[rank] * model.layer_parameters(run.tp, run.ep)
    return layers + _end_parameters(run, model, rank)


def rank_weight_bytes(run: Execution, model: Architecture, rank: int) -> float:
    """Bytes of the weights of a pipeline rank that only computes: a quantised checkpoint leaves embedding and head as is."""
    layers = split_layers(run, model)[rank] * model.layer_parameters(run.tp, run.ep)
    return layers * run.weight_bytes + _end_parameters(run, model, rank) * run.item_bytes


def _end_parameters(run: Execution, model: Architecture, rank: int) -> float:
    has_head = rank == run.pp - 1 and (run.pp > 1 or not model.decoder.tied or model.values > 0)
    return (rank == 0) * model.end_parameters(run.tp) + has_head * model.head_parameters(run.tp)


def fullest_rank(run: Execution, model: Architecture) -> int:
    """The pipeline rank with the most parameters: the first has the embedding and most layers, the last the head."""
    return max((0, run.pp - 1), key=lambda rank: rank_parameters(run, model, rank))


def rank_expert_parameters(run: Execution, model: Architecture, rank: int) -> float:
    """Those of them that are of routed experts."""
    return split_layers(run, model)[rank] * model.expert_parameters(run.tp, run.ep) if model.decoder.experts else 0.0


def updated_parameters(run: Execution, model: Architecture, rank: int) -> float:
    """Parameters whose optimizer state one device has: under ZeRO-1 a share, of experts one of their own replicas."""
    parameters, experts = rank_parameters(run, model, rank), rank_expert_parameters(run, model, rank)
    return (parameters - experts) / run.shares + experts / run.dp if run.zero1 else parameters


def layer_amounts(run: Execution, model: Architecture, tokens: float, *, forwards: float, collectives: float) -> Amounts:
    """One layer on one rank for `tokens` tokens; `collectives` counts directions, each with two all-reduces over TP."""
    device = run.hardware.accelerator
    touched = model.elementwise(run.tp, run.norm_shards)
    attention = model.attention_flops(run.tokens, run.tp, square=run.regime.writes_scores)
    if run.regime.writes_scores:
        touched += SCORE_ACCESSES * model.scores(run.tokens, run.tp)
    found: dict[OpClass, float] = {
        OpClass.ATTENTION: forwards * tokens * attention / device.flops_s(run.dtype),
        OpClass.ELEMENTWISE: forwards * tokens * touched * run.item_bytes / device.memory_bytes_s,
    }
    products = amounts({})
    for product in model.products(run.tp):
        products += product_amounts(run, tokens, product.inner, product.outer)
    messages = {**tp_amounts(run, tokens * model.decoder.hidden_size, 2 * collectives)}
    messages |= expert_amounts(run, model, tokens, collectives)
    return forwards * products + amounts({**found, **messages})


def expert_amounts(run: Execution, model: Architecture, tokens: float, directions: float) -> Mapping[OpClass, float]:
    """All-to-alls of one layer over the EP group, two per direction: tokens to their experts, and results back.

    Tokens are taken to spread evenly over experts. Where the group is larger than a node, all of it is priced at the
    network's rate.
    """
    if run.ep == 1:
        return {}
    link = run.hardware.link(run.tp * run.ep)
    crossing = (run.ep - 1) / run.ep * tokens * model.routed_width * run.item_bytes / run.norm_shards
    latency = model.expert_share * (run.ep - 1) * LATENCY_S[link]
    return {_EXPERTS[link]: 2 * directions * (crossing / run.hardware.bytes_s(link) + latency)}


def product_amounts(run: Execution, tokens: float, inner: float, outer: float) -> Amounts:
    """One matrix product of `tokens` rows."""
    device, weight = run.hardware.accelerator, run.weight_bytes
    return amounts(
        {
            OpClass.GEMM: 2 * tokens * inner * outer / device.flops_s(run.dtype),
            OpClass.GEMM_BYTES: (run.item_bytes * tokens * (inner + outer) + weight * inner * outer) / device.memory_bytes_s,
        }
    )


def tp_amounts(run: Execution, elements: float, reduces: float) -> Mapping[OpClass, float]:
    """All-reduces of the hidden states over the TP group; as many bytes when each is a reduce-scatter and an all-gather.

    Beyond a node all members of a node carry what leaves it.
    """
    if run.tp == 1:
        return {}
    link = run.hardware.link(run.tp)
    size, latency = _TP[link]
    crossing = 2 * (run.tp - 1) / run.tp * elements * run.item_bytes
    ways_out = min(run.tp, run.hardware.devices_per_node) if link is LinkClass.NETWORK else 1
    return {
        size: reduces * crossing / (run.hardware.bytes_s(link) * ways_out),
        latency: reduces * run.reduce_latency_s(run.tp, link),
    }


def end_amounts(run: Execution, model: Architecture, tokens: float, directions: float) -> Amounts:
    """TP collectives of embedding and head, as the regime counts them."""
    return amounts(tp_amounts(run, tokens * model.decoder.hidden_size, 2 * directions * run.regime.ends))


def head_amounts(run: Execution, model: Architecture, tokens: float, *, trains: bool) -> Amounts:
    """Logits or values of these tokens, and the loss on them."""
    forwards, outputs = 1 + BACKWARD * trains, model.head_outputs(run.tp)
    logits = tokens * outputs
    touched = LOGIT_BYTES if trains else LOGIT_BYTES / 2
    products = product_amounts(run, tokens, model.decoder.hidden_size, outputs)
    return forwards * products + amounts({OpClass.ELEMENTWISE: logits * touched / run.hardware.accelerator.memory_bytes_s})


def _phase(run: Execution, model: Architecture, *, passes: int, forwards: float, collectives: float) -> Phase:
    """The slots of one update: the rank with the most layers, and the last one, which has the head."""
    layer = layer_amounts(run, model, run.micro_tokens, forwards=forwards, collectives=collectives)
    head = head_amounts(run, model, run.scored_micro_tokens, trains=passes > 1)
    ends = end_amounts(run, model, run.micro_tokens, collectives)
    layers = paces(run, model)
    calls = {OpClass.DISPATCH: forwards * FORWARD_CALLS * CALL_S}
    if run.regime.pipelined_dispatch and min(run.tp, run.pp) > 1 and run.hardware.link(run.hop_span) is LinkClass.NETWORK:
        calls[OpClass.DISPATCH_PIPELINED] = run.tp * forwards * FORWARD_CALLS * CALL_S
    launches = amounts(calls)
    return Phase(
        slots=run.micro_batches + run.pp - 1,
        device=(*(count * layer + ends for count in layers[:-1]), layers[-1] * layer + ends + head),
        host=tuple((count + run.regime.ends) * launches for count in layers),
        between=_sends(run, model, both_ways=passes > 1),
    )


def _sends(run: Execution, model: Architecture, *, both_ways: bool) -> Amounts:
    """Hidden states to the next rank, gradients back."""
    if run.pp == 1:
        return nothing()
    link = run.hardware.link(run.hop_span)
    size = run.micro_tokens * model.decoder.hidden_size * run.item_bytes / run.norm_shards
    return amounts({_SEND[link]: (1 + both_ways) * (size / run.hardware.bytes_s(link) + hop_latency_s(run, link))})


def hop_latency_s(run: Execution, link: LinkClass) -> float:
    """Seconds of a small message to a neighbour: half of what the two need for an all-reduce."""
    return run.reduce_latency_s(2, link) / 2


def _sync(run: Execution, model: Architecture) -> Amounts:
    """Gradients over the replicas; those of a group in one node share all of its ways out of the node."""
    if run.shares == 1:
        return nothing()
    rank = fullest_rank(run, model)
    experts = rank_expert_parameters(run, model, rank)
    dense = rank_parameters(run, model, rank) - experts
    return _reduced(run, dense, run.shares, run.replicas_per_node) + _reduced(
        run, experts, run.dp, run.expert_replicas_per_node
    )


def _reduced(run: Execution, parameters: float, members: int, members_per_node: int) -> Amounts:
    """Gradients of so many parameters over a group, and under ZeRO-1 the parameters back."""
    if members == 1 or not parameters:
        return nothing()
    link = run.hardware.link(run.replica_span)
    rate = run.hardware.bytes_s(link) * (members_per_node if link is LinkClass.NETWORK else 1)
    gradient, crossing = run.regime.gradient_bytes, (members - 1) / members
    # Latencies of ring steps vanish beside the bytes of gradients; those of a slow transport were measured.
    latency = run.reduce_latency_s(members, link) if run.regime.reduce_latency_s else 0.0
    if run.zero1:
        return amounts({_SCATTER[link]: crossing * parameters * (gradient + run.item_bytes) / rate + latency})
    return amounts({_REDUCE[link]: 2 * crossing * parameters * gradient / rate + latency})


def _optimizer(run: Execution, model: Architecture) -> Amounts:
    rank = fullest_rank(run, model)
    parameters, updated = rank_parameters(run, model, rank), updated_parameters(run, model, rank)
    touched = updated * OPTIMIZER_BYTES + parameters * GRADIENT_PASS_BYTES
    moved = updated * OFFLOADED_BYTES if run.offload is Offload.OPTIMIZER else 0.0
    calls = run.regime.optimizer_calls * max(split_layers(run, model)) * FORWARD_CALLS
    return amounts(
        {
            OpClass.OPTIMIZER: touched / run.hardware.accelerator.memory_bytes_s,
            OpClass.OFFLOAD: moved / run.hardware.accelerator.host_bytes_s,
            OpClass.DISPATCH: calls * CALL_S,
        }
    )
