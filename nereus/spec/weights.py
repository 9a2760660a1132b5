"""The weights of a decoder as plain sizes, with the way tensor parallelism cuts them: what plans are counted from.

    Decoder -> first_weights, layer_weights(layer)..., last_weights -> parameters, shares of a rank, shapes of products

Names and boxes are those of the canonical tensors (nereus/layout), which a test holds to the same sums. Families that can
be planned and not moved have weights here and no canonical tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import ceil

from nereus.spec.decoder import Decoder, Experts, LatentAttention, QkNorm


class Part(StrEnum):
    """What a weight is part of."""

    EMBEDDING = "embedding"
    """A table: looked up, not multiplied."""
    ATTENTION = "attention"
    MLP = "mlp"
    """Dense MLPs, and shared experts."""
    EXPERTS = "experts"
    """Routed experts, of which a token passes through some."""
    ROUTER = "router"
    NORM = "norm"
    HEAD = "head"


class Cut(StrEnum):
    """What each rank of a TP group has of a weight."""

    WHOLE = "whole"
    """All of it."""
    OUTPUTS = "outputs"
    """Some of the outputs (column parallel)."""
    INPUTS = "inputs"
    """Some of the inputs (row parallel): the results are added up over the group."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Alike matrices of `inputs` x `outputs` elements, or vectors (norms, biases) where `inputs` is 1."""

    part: Part
    inputs: int
    outputs: int
    cut: Cut = Cut.WHOLE
    grain: int = 1
    """Elements of the cut axis that stay together: the dimension of a head."""
    copies: int = 1
    active: int = 1
    """Copies that one token passes through."""

    @property
    def num_parameters(self) -> int:
        """Of all copies."""
        return self.copies * self.inputs * self.outputs

    @property
    def active_parameters(self) -> int:
        """Of the copies that one token passes through."""
        return self.active * self.inputs * self.outputs

    @property
    def multiplied(self) -> bool:
        """Whether it is a matrix that hidden states are multiplied by: two FLOPs per active parameter and token."""
        return self.inputs > 1 and self.part is not Part.EMBEDDING

    def shape(self, tp: int) -> tuple[int, int]:
        """Inputs and outputs of one copy on the fullest rank of a TP group: K and N of its product."""
        inputs, outputs = self.inputs, self.outputs
        if self.cut is Cut.OUTPUTS:
            outputs = _share(outputs, self.grain, tp)
        elif self.cut is Cut.INPUTS:
            inputs = _share(inputs, self.grain, tp)
        return inputs, outputs

    def share(self, tp: int, ep: int = 1) -> int:
        """Parameters on the fullest rank; expert parallelism shares routed experts out whole, and nothing else."""
        inputs, outputs = self.shape(tp)
        copies = ceil(self.copies / ep) if self.part is Part.EXPERTS else self.copies
        return copies * inputs * outputs


Weights = tuple[Weight, ...]


def num_parameters(decoder: Decoder) -> int:
    """All parameters, a tied head counted once."""
    return rank_parameters(decoder, range(decoder.num_layers), first=True, last=True)


def active_parameters(decoder: Decoder) -> int:
    """Parameters without the routed experts that a token does not pass through; the embedding counts whole."""
    ends = sum(weight.active_parameters for weight in (*first_weights(decoder), *_untied(decoder)))
    layers = _alike(decoder, range(decoder.num_layers))
    return ends + sum(count * weight.active_parameters for weights, count in layers for weight in weights)


def matrix_products(decoder: Decoder) -> int:
    """Multiply-adds of one token with all matrices, the head included: half of the FLOPs of a forward but for attention."""
    layers = _alike(decoder, range(decoder.num_layers))
    counted = [(last_weights(decoder), 1), *layers]
    return sum(count * w.active_parameters for weights, count in counted for w in weights if w.multiplied)


def rank_parameters(decoder: Decoder, layers: range, *, first: bool, last: bool, tp: int = 1, ep: int = 1) -> int:
    """Parameters on the fullest TP rank of a pipeline rank with these layers; a tied head is there once."""
    ends = first_weights(decoder) if first else ()
    if last:
        ends += _untied(decoder) if first else last_weights(decoder)
    total = sum(weight.share(tp, ep) for weight in ends)
    return total + sum(count * weight.share(tp, ep) for weights, count in _alike(decoder, layers) for weight in weights)


@lru_cache(maxsize=256)
def first_weights(decoder: Decoder) -> Weights:
    """Of the first pipeline rank besides its layers: token embeddings, and learnt positions."""
    tokens = Weight(Part.EMBEDDING, decoder.vocab_size, decoder.hidden_size, Cut.INPUTS)
    positions = Weight(Part.EMBEDDING, decoder.num_positions, decoder.hidden_size)
    return (tokens, positions) if decoder.num_positions else (tokens,)


@lru_cache(maxsize=256)
def last_weights(decoder: Decoder) -> Weights:
    """Of the last pipeline rank besides its layers: the final norm, and the head, tied or not."""
    found = [Weight(Part.HEAD, decoder.hidden_size, decoder.vocab_size, Cut.OUTPUTS)]
    if decoder.head_bias:
        found.append(Weight(Part.HEAD, 1, decoder.vocab_size, Cut.OUTPUTS))
    if decoder.final_norm:
        found.append(_norm(decoder, 1))
    return tuple(found)


def _untied(decoder: Decoder) -> Weights:
    """Those of the last rank where the embedding is there too."""
    found = last_weights(decoder)
    return found[1:] if decoder.tied else found


def layer_weights(decoder: Decoder, layer: int) -> Weights:
    """Of one decoder layer."""
    return _layer(decoder, has_experts=decoder.has_experts(layer))


def _alike(decoder: Decoder, layers: range) -> Iterator[tuple[Weights, int]]:
    """The kinds of layers in a range, and how many there are of each."""
    with_experts = sum(decoder.has_experts(layer) for layer in layers)
    for has_experts, count in ((True, with_experts), (False, len(layers) - with_experts)):
        if count:
            yield _layer(decoder, has_experts=has_experts), count


@lru_cache(maxsize=256)
def _layer(decoder: Decoder, *, has_experts: bool) -> Weights:
    experts = decoder.experts if has_experts else None
    norms = (_norm(decoder, len(decoder.norms)),) if decoder.norms else ()
    attention = _grouped(decoder) if decoder.latent is None else _latent(decoder, decoder.latent)
    mlp = _mlp(decoder, decoder.ffn_size) if experts is None else _experts(decoder, experts)
    return (*norms, *attention, *mlp)


def _norm(decoder: Decoder, count: int) -> Weight:
    vectors = count * (2 if decoder.norm_bias else 1)
    return Weight(Part.NORM, 1, decoder.hidden_size, copies=vectors, active=vectors)


def _grouped(decoder: Decoder) -> Iterator[Weight]:
    """Grouped-query attention: q, k, v and o, with norms, biases and sinks where there are."""
    hidden, grain = decoder.hidden_size, decoder.head_dim
    q, kv = decoder.num_heads * grain, decoder.num_kv_heads * grain
    for outputs in (q, kv, kv):
        yield Weight(Part.ATTENTION, hidden, outputs, Cut.OUTPUTS, grain)
        if decoder.qkv_bias:
            yield Weight(Part.ATTENTION, 1, outputs, Cut.OUTPUTS, grain)
    yield Weight(Part.ATTENTION, q, hidden, Cut.INPUTS, grain)
    if decoder.out_bias:
        yield Weight(Part.ATTENTION, 1, hidden)
    if decoder.qk_norm is not QkNorm.NONE:
        for projection in (q, kv):
            yield Weight(Part.NORM, 1, grain if decoder.qk_norm is QkNorm.HEAD else projection)
    if decoder.sinks:
        yield Weight(Part.ATTENTION, 1, decoder.num_heads, Cut.OUTPUTS)


def _latent(decoder: Decoder, latent: LatentAttention) -> Iterator[Weight]:
    """MLA: what compresses is whole on every TP rank, what comes out of it is cut by heads."""
    hidden, heads, grain = decoder.hidden_size, decoder.num_heads, decoder.head_dim
    if latent.q_rank:
        yield Weight(Part.ATTENTION, hidden, latent.q_rank)
        yield Weight(Part.NORM, 1, latent.q_rank)
    yield Weight(Part.ATTENTION, latent.q_rank or hidden, heads * grain, Cut.OUTPUTS, grain)
    yield Weight(Part.ATTENTION, hidden, latent.kv_rank + latent.rope_dim)
    yield Weight(Part.NORM, 1, latent.kv_rank)
    pair = grain - latent.rope_dim + latent.value_dim
    yield Weight(Part.ATTENTION, latent.kv_rank, heads * pair, Cut.OUTPUTS, pair)
    yield Weight(Part.ATTENTION, heads * latent.value_dim, hidden, Cut.INPUTS, latent.value_dim)


def _mlp(decoder: Decoder, width: int) -> Iterator[Weight]:
    hidden, ups = decoder.hidden_size, 2 if decoder.gated else 1
    yield Weight(Part.MLP, hidden, width, Cut.OUTPUTS, copies=ups, active=ups)
    yield Weight(Part.MLP, width, hidden, Cut.INPUTS)
    if decoder.mlp_bias:
        yield Weight(Part.MLP, 1, width, Cut.OUTPUTS, copies=ups, active=ups)
        yield Weight(Part.MLP, 1, hidden)


def _experts(decoder: Decoder, experts: Experts) -> Iterator[Weight]:
    """The router, gated experts that are each cut like an MLP, and the shared ones."""
    hidden, width, count, active = decoder.hidden_size, experts.ffn_size, experts.count, experts.active
    yield Weight(Part.ROUTER, hidden, count)
    if experts.router_bias:
        yield Weight(Part.ROUTER, 1, count)
    yield Weight(Part.EXPERTS, hidden, width, Cut.OUTPUTS, copies=2 * count, active=2 * active)
    yield Weight(Part.EXPERTS, width, hidden, Cut.INPUTS, copies=count, active=active)
    if experts.bias:
        yield Weight(Part.EXPERTS, 1, width, Cut.OUTPUTS, copies=2 * count, active=2 * active)
        yield Weight(Part.EXPERTS, 1, hidden, copies=count, active=active)
    if experts.shared_ffn_size:
        yield from _mlp(decoder, experts.shared_ffn_size)


def _share(length: int, grain: int, tp: int) -> int:
    """The largest part of an axis: grains are shared out as evenly as possible, and repeated where they are too few."""
    return ceil(length // grain / tp) * grain
