"""What plans are counted from, for each published config: parameters, active parameters, KV cache; or why there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nereus.errors import JobFileError
from nereus.spec.attention import attention_products, kv_bytes_per_token
from nereus.spec.hf_config import HfModel, parse_hf_config
from nereus.spec.weights import active_parameters, first_weights, matrix_products
from tests.published_counts import TOTAL

ROUNDED = ("DeepSeek-V3", "Llama-4-Scout-17B-16E-Instruct", "gpt-oss-20b")
"""Held to 1 %; the others are published to the last parameter."""

REFUSED = {
    "Llama-3_3-Nemotron-Super-49B-v1": "'nemotron-nas' is not allowed; its layers differ",
    "rwkv5-3b": "'rwkv5' is not allowed; it has no attention",
}


@pytest.mark.parametrize("name", TOTAL)
def test_parameters_are_as_many_as_published(name: str, data_dir: Path) -> None:
    tolerance = 0.01 if name in ROUNDED else 0
    assert read(data_dir, name).num_parameters == pytest.approx(TOTAL[name], rel=tolerance, abs=0)


@pytest.mark.parametrize("name", REFUSED)
def test_model_that_cannot_be_planned_is_refused_with_the_reason(name: str, data_dir: Path) -> None:
    with pytest.raises(JobFileError, match=REFUSED[name]):
        read(data_dir, name)


def test_every_file_is_either_counted_or_refused(data_dir: Path) -> None:
    assert {path.stem for path in (data_dir / "hf_configs").glob("*.json")} == {*TOTAL, *REFUSED}


ACTIVE = {
    "DeepSeek-V2-Lite": (2.4e9, False),  # arXiv 2405.04434, appendix B
    "DeepSeek-V3": (36.7e9, False),  # README_WEIGHTS.md says with the embedding; only without it does the sum come out
    "Llama-4-Scout-17B-16E-Instruct": (17e9, True),  # model card
    "Mixtral-8x7B-v0.1": (12.9e9, True),  # arXiv 2401.04088, section 2.1: "13B active"; 12.9B in the announcement
    "Qwen3-30B-A3B": (3.3e9, True),  # model card
    "Qwen3-235B-A22B": (22e9, True),  # model card
    "gpt-oss-20b": (3.61e9, False),  # arXiv 2508.10925, table 1: the embedding is not counted, the head is
}
"""Published parameters per token, to the digits given, and whether the table of embeddings is among them."""


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_as_many_as_published(name: str, data_dir: Path) -> None:
    published, with_embedding = ACTIVE[name]
    decoder = read(data_dir, name).decoder
    embedding = sum(weight.num_parameters for weight in first_weights(decoder))
    assert active_parameters(decoder) - (0 if with_embedding else embedding) == pytest.approx(published, rel=0.025)


KIB = 1024
KV_BYTES = {
    "Meta-Llama-3.1-8B": 128 * KIB,  # 32 layers x 8 heads x 128 x (K, V) x 2 bytes
    "DeepSeek-V3": 70_272,  # "70.272 KB (BF16)": Insights into DeepSeek-V3, arXiv 2505.09343, table 1
    "Meta-Llama-3.1-405B": 516_096,  # "516.096 KB": the same table
}


@pytest.mark.parametrize("name", KV_BYTES)
def test_kv_cache_of_a_token_is_as_large_as_published(name: str, data_dir: Path) -> None:
    assert kv_bytes_per_token(read(data_dir, name).decoder, item_bytes=2) == KV_BYTES[name]


TRAINING_GFLOPS = {"DeepSeek-V3": 250, "Meta-Llama-3.1-405B": 2448}
"""Of one token at 4096 tokens: Insights into DeepSeek-V3, arXiv 2505.09343, table 2."""


@pytest.mark.parametrize("name", TRAINING_GFLOPS)
def test_flops_of_training_on_a_token_are_as_many_as_published(name: str, data_dir: Path) -> None:
    decoder, tokens = read(data_dir, name).decoder, 4096
    attention = attention_products(decoder, range(decoder.num_layers), tokens) / tokens
    flops = 3 * 2 * (matrix_products(decoder) + attention)  # a backward is twice its forward
    assert flops / 1e9 == pytest.approx(TRAINING_GFLOPS[name], rel=0.015)


def read(data_dir: Path, name: str) -> HfModel:
    text = (data_dir / "hf_configs" / f"{name}.json").read_text(encoding="utf-8")
    return parse_hf_config(json.loads(text), "config.json")
