"""What a rank has of each weight, and what a token passes through: worked by hand on small shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.spec.decoder import Decoder, Experts, LatentAttention
from nereus.spec.weights import (
    Cut,
    Part,
    Weight,
    active_parameters,
    last_weights,
    layer_weights,
    matrix_products,
    num_parameters,
    rank_parameters,
)

DENSE = Decoder(hidden_size=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=2, ffn_size=12, vocab_size=10)
MOE = replace(DENSE, experts=Experts(count=4, ffn_size=6, active=2, layers=frozenset((1,)), shared_ffn_size=5))
MLA = replace(DENSE, num_kv_heads=4, head_dim=6, latent=LatentAttention(q_rank=3, kv_rank=5, rope_dim=2, value_dim=7))


def of(decoder: Decoder, layer: int, part: Part) -> int:
    return sum(weight.num_parameters for weight in layer_weights(decoder, layer) if weight.part is part)


def test_dense_layer_is_attention_mlp_and_norms() -> None:
    assert of(DENSE, 0, Part.ATTENTION) == 8 * 8 + 2 * 8 * 4 + 8 * 8
    assert of(DENSE, 0, Part.MLP) == 3 * 8 * 12
    assert of(DENSE, 0, Part.NORM) == 2 * 8


def test_mlp_without_a_gate_has_two_matrices() -> None:
    assert of(replace(DENSE, gated=False), 0, Part.MLP) == 2 * 8 * 12


def test_layer_of_experts_has_a_router_and_shared_experts_in_place_of_its_mlp() -> None:
    assert (of(MOE, 0, Part.EXPERTS), of(MOE, 0, Part.MLP)) == (0, 3 * 8 * 12)
    assert (of(MOE, 1, Part.EXPERTS), of(MOE, 1, Part.MLP)) == (4 * 3 * 8 * 6, 3 * 8 * 5)
    assert of(MOE, 1, Part.ROUTER) == 8 * 4


def test_token_passes_through_some_experts_and_everything_else() -> None:
    assert num_parameters(MOE) - active_parameters(MOE) == 2 * 3 * 8 * 6
    assert active_parameters(DENSE) == num_parameters(DENSE)


def test_latent_attention_compresses_queries_and_keys_with_values() -> None:
    expected = (8 * 3 + 3 * 4 * 6) + (8 * (5 + 2) + 5 * 4 * (4 + 7)) + 4 * 7 * 8
    assert of(MLA, 0, Part.ATTENTION) == expected
    assert of(MLA, 0, Part.NORM) == 2 * 8 + 3 + 5


def test_what_compresses_is_whole_on_every_rank() -> None:
    whole = [(w.inputs, w.outputs) for w in layer_weights(MLA, 0) if w.part is Part.ATTENTION and w.cut is Cut.WHOLE]
    assert whole == [(8, 3), (8, 7)]


@pytest.mark.parametrize(("tp", "expected"), [(1, (8, 8)), (2, (8, 4)), (4, (8, 2)), (3, (8, 4))])
def test_outputs_are_cut_in_whole_heads(tp: int, expected: tuple[int, int]) -> None:
    assert Weight(Part.ATTENTION, 8, 8, Cut.OUTPUTS, grain=2).shape(tp) == expected


def test_heads_that_are_too_few_are_repeated() -> None:
    weight = Weight(Part.ATTENTION, 8, 4, Cut.OUTPUTS, grain=2)
    assert [weight.shape(tp)[1] for tp in (1, 2, 4, 8)] == [4, 2, 2, 2]


def test_experts_are_shared_out_whole_over_the_ep_axis_and_nothing_else_is() -> None:
    experts, mlp = Weight(Part.EXPERTS, 8, 6, Cut.OUTPUTS, copies=8), Weight(Part.MLP, 8, 6, Cut.OUTPUTS, copies=2)
    assert [experts.share(2, ep) for ep in (1, 2, 4)] == [8 * 24, 4 * 24, 2 * 24]
    assert [mlp.share(2, ep) for ep in (1, 2, 4)] == [2 * 24] * 3


def test_embeddings_and_vectors_are_not_multiplied() -> None:
    assert not Weight(Part.EMBEDDING, 10, 8).multiplied
    assert not Weight(Part.NORM, 1, 8).multiplied
    assert Weight(Part.HEAD, 8, 10).multiplied


def test_tied_head_is_multiplied_and_counted_once_unless_the_ends_are_apart() -> None:
    tied = replace(DENSE, tied=True)
    assert Part.HEAD in {weight.part for weight in last_weights(tied)}
    assert num_parameters(DENSE) - num_parameters(tied) == 10 * 8
    ranks = [rank_parameters(tied, range(i, i + 1), first=i == 0, last=i == 1) for i in range(2)]
    assert sum(ranks) == num_parameters(tied) + 10 * 8


def test_token_is_multiplied_with_its_own_experts_and_the_head_and_with_no_table_or_vector() -> None:
    attention, ends = 2 * (8 * 8 + 8 * 4), 8 * 10
    dense, routed = 3 * 8 * 12, 8 * 4 + 2 * 3 * 8 * 6 + 3 * 8 * 5
    assert matrix_products(DENSE) == 2 * (attention + dense) + ends
    assert matrix_products(MOE) == 2 * attention + dense + routed + ends
    assert matrix_products(replace(DENSE, tied=True)) == matrix_products(DENSE)
