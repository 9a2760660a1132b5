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
    """What a family calls the router, the three matrices of an expert, and the shared experts."""

    router: str
    expert: str
    gate: str
    up: str
    down: str
    shared: str | None = None


SEPARATE = {
    "mixtral": ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"),
    "qwen3_moe": ExpertNames("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"),
    "deepseek_v2": ExpertNames("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj", "mlp.shared_experts"),
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
    for index in range(experts.count):
        yield from _expert(make, layer, f"{names.expert}.{index}", names, decoder.hidden_size, experts.ffn_size)
    if names.shared is not None and experts.shared_ffn_size:
        yield from _expert(make, layer, names.shared, names, decoder.hidden_size, experts.shared_ffn_size)


def _expert(
    make: LayerTensors, layer: int, expert: str, names: ExpertNames, hidden: int, size: int
) -> Iterator[CanonicalTensor]:
    width = (Segment(size),)
    yield from make.split_outputs(layer, f"{expert}.{names.gate}", hidden, width)
    yield from make.split_outputs(layer, f"{expert}.{names.up}", hidden, width)
    yield from make.split_inputs(layer, f"{expert}.{names.down}", width, hidden)


def _fused(make: LayerTensors, layer: int, hidden: int, experts: Experts) -> Iterator[CanonicalTensor]:
    """Columns of gate and up alternate, so that a slice of pairs is a slice of both."""
    count, pairs, width = experts.count, Segment(2 * experts.ffn_size, 2), Segment(experts.ffn_size)
    yield make.one(layer, "mlp.router.weight", (count, hidden))
    yield make.one(layer, "mlp.router.bias", (count,))
    yield make.one(layer, "mlp.experts.gate_up_proj", (count, hidden, pairs.length), 2, (pairs,))
    yield make.one(layer, "mlp.experts.gate_up_proj_bias", (count, pairs.length), 1, (pairs,))
    yield make.one(layer, "mlp.experts.down_proj", (count, width.length, hidden), 1, (width,))
    yield make.one(layer, "mlp.experts.down_proj_bias", (count, hidden))
