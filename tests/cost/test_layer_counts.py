"""What a layer computes, against published parameter counts and the formulas of Megatron-LM's papers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.cost.components import training_components
from nereus.cost.execution import MEGATRON, MEGATRON_2021
from nereus.cost.layer import Architecture
from nereus.spec.attention import attention_products
from nereus.spec.decoder import Window
from nereus.spec.weights import Part, layer_weights, matrix_products
from tests.cost.accelerators import GPT_175B, LLAMA_8B, MIXTRAL, execution


def _parameters(model: Architecture) -> float:
    ends = 1 if model.decoder.tied else 2
    return model.decoder.num_layers * model.layer_parameters(1) + ends * model.end_parameters(1)


@pytest.mark.parametrize(("model", "billions"), [(LLAMA_8B, 8.03), (MIXTRAL, 46.7), (GPT_175B, 174.6)])
def test_parameters_are_the_published_ones(model: Architecture, billions: float) -> None:
    assert _parameters(model) / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_token_of_mixtral_goes_through_a_quarter_of_its_experts() -> None:
    per_token = sum(p.inner * p.outer for p in MIXTRAL.products(1)) * 32 + 2 * MIXTRAL.end_parameters(1)
    assert per_token / 1e9 == pytest.approx(12.9, rel=0.01), "Mixtral's paper: 13B active parameters"


def test_products_and_attention_of_a_forward_are_megatrons_formula() -> None:
    """Narayanan et al. 2021, appendix: 24 B s L h^2 (1 + s / 6h) per forward; half of the square where it is causal."""
    tokens, hidden = 2048, 12_288
    products = 2 * sum(p.inner * p.outer for p in GPT_175B.products(1))
    assert products == 24 * hidden**2
    assert GPT_175B.attention_flops(tokens, 1) == 4 * tokens * hidden / 2


def test_tp_shares_out_products_and_repeats_few_kv_heads() -> None:
    whole, eighth = LLAMA_8B.products(1), LLAMA_8B.products(8)
    assert sum(p.inner * p.outer for p in eighth) * 8 == sum(p.inner * p.outer for p in whole)
    assert LLAMA_8B.kv_width(16) == LLAMA_8B.kv_width(8) == 128


def test_a_window_bounds_what_attention_sees() -> None:
    everywhere = Window(size=1024, layers=frozenset(range(32)))
    windowed = Architecture(replace(LLAMA_8B.decoder, window=everywhere))
    assert windowed.context(8192) == 1024
    assert windowed.attention_flops(65_536, 1) == windowed.attention_flops(8192, 1)
    assert windowed.attention_flops(512, 1) == LLAMA_8B.attention_flops(512, 1)


def test_a_large_batch_reads_all_experts_and_one_token_reads_its_own() -> None:
    assert MIXTRAL.read_ffn(1) == pytest.approx(2 * 14_336)
    assert MIXTRAL.read_ffn(1000) == pytest.approx(8 * 14_336)


def test_activations_are_near_those_that_korthikanti_counts() -> None:
    """Korthikanti et al. 2022, table 2: 34 s b h bytes per layer without the square of attention; flash attention keeps no
    square, and without dropout its three masks (5 s b h / 2) go."""
    kept = 2 * (GPT_175B.kept_outside(1) + GPT_175B.kept_inside(1)) / 12_288
    assert 0.85 * 34 <= kept <= 1.1 * 34


def test_kept_scores_make_it_the_whole_of_what_korthikanti_counts() -> None:
    """The same table: s b h (34 + 5 a s / h) bytes per layer."""
    run = execution(sequences=1, tokens=2048, regime=MEGATRON)
    flash, before = (
        training_components(replace(run, regime=regime), GPT_175B)[0].sum() for regime in (MEGATRON, MEGATRON_2021)
    )
    assert before - flash == pytest.approx(96 * 5 * 96 * 2048**2)


def test_the_head_of_a_small_model_is_worth_many_layers() -> None:
    """Llama shapes with h 2048, f 8192, vocabulary 131072: 131072 h / (4 h^2 + 3 h f) = 4."""
    decoder = replace(LLAMA_8B.decoder, hidden_size=2048, num_kv_heads=32, head_dim=64, ffn_size=8192, vocab_size=131_072)
    assert replace(LLAMA_8B, decoder=decoder).head_layers == pytest.approx(4.0)


@pytest.mark.parametrize("model", [LLAMA_8B, GPT_175B, MIXTRAL], ids=["llama", "gpt", "mixtral"])
def test_products_are_those_of_the_weights(model: Architecture) -> None:
    """What latency is counted from and what parameters are counted from agree; a router is too small to have a price."""
    decoder = model.decoder
    layers = decoder.num_layers * sum(product.inner * product.outer for product in model.products(1))
    router = sum(w.active_parameters for w in layer_weights(decoder, 0) if w.part is Part.ROUTER) * decoder.num_layers
    assert layers + model.end_parameters(1) == matrix_products(decoder) - router


@pytest.mark.parametrize("model", [LLAMA_8B, GPT_175B, MIXTRAL], ids=["llama", "gpt", "mixtral"])
def test_attention_is_that_of_the_keys_each_query_sees(model: Architecture) -> None:
    decoder, tokens = model.decoder, 4096
    counted = 2 * attention_products(decoder, range(decoder.num_layers), tokens)
    assert tokens * decoder.num_layers * model.attention_flops(tokens, 1) == pytest.approx(counted, rel=1e-3)
