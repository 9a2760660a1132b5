"""The tensors of a mixture of experts: a router that every rank holds, and experts that are each cut like an MLP.

Every TP rank has a slice of every expert. Expert parallelism, which gives a rank some experts whole, is not carried out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nereus.errors import TensorRuleError
from nereus.layout.parameters import LayerTensors
from nereus.layout.tensors import CanonicalTensor, Segment
from nereus.spec.decoder import Decoder, Experts


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a family calls the router and the three matrices of an expert."""

    router: str
    expert: str
    gate: str
    up: str
    down: str


SEPARATE = {
    "mixtral": ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"),
    "qwen3_moe": ExpertNames("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"),
}
"""The families whose experts are matrices of their own."""

FUSED = "gpt_oss"
"""The family that has all experts of a layer in one tensor."""


def expert_tensors(make: LayerTensors, layer: int, decoder: Decoder, experts: Experts) -> Iterator[CanonicalTensor]:
    """The router and the experts of a layer. Raises TensorRuleError for a family without a rule."""
    if decoder.family == FUSED:
        yield from _fused(make, layer, decoder.hidden_size, experts)
        return
    names = SEPARATE.get(decoder.family)
    if names is None:
        raise TensorRuleError(f"the experts of {decoder.family} have no rule; known are {[*SEPARATE, FUSED]}")
    yield make.one(layer, f"{names.router}.weight", (experts.count, decoder.hidden_size))
    width = (Segment(experts.ffn_size),)
    for index in range(experts.count):
        expert = f"{names.expert}.{index}"
        yield from make.split_outputs(layer, f"{expert}.{names.gate}", decoder.hidden_size, width)
        yield from make.split_outputs(layer, f"{expert}.{names.up}", decoder.hidden_size, width)
        yield from make.split_inputs(layer, f"{expert}.{names.down}", width, decoder.hidden_size)


def _fused(make: LayerTensors, layer: int, hidden: int, experts: Experts) -> Iterator[CanonicalTensor]:
    """Columns of gate and up alternate, so that a slice of pairs is a slice of both."""
    count, pairs, width = experts.count, Segment(2 * experts.ffn_size, 2), Segment(experts.ffn_size)
    yield make.one(layer, "mlp.router.weight", (count, hidden))
    yield make.one(layer, "mlp.router.bias", (count,))
    yield make.one(layer, "mlp.experts.gate_up_proj", (count, hidden, pairs.length), 2, (pairs,))
    yield make.one(layer, "mlp.experts.gate_up_proj_bias", (count, pairs.length), 1, (pairs,))
    yield make.one(layer, "mlp.experts.down_proj", (count, width.length, hidden), 1, (width,))
    yield make.one(layer, "mlp.experts.down_proj_bias", (count, hidden))
