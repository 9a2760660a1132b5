"""Parameter counts of published models, from excerpts of their config.json and from the files: all of a model's tensors.

The counts are those of the model cards, or of the safetensors that Hugging Face shows beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.layout.dense import dense_parameters
from nereus.spec.hf_config import parse_movable
from tests.published_counts import TOTAL

Config = Mapping[str, Any]


def shape(
    model_type: str, hidden: int, layers: int, heads: int, kv_heads: int | None, ffn: int, vocab: int, **more: Any
) -> Config:
    """The fields that every family but GPT-2 has."""
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **({"num_key_value_heads": kv_heads} if kv_heads else {}),
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **more,
    }


EXCERPTS: dict[str, tuple[Config, int]] = {
    "Llama-3.1-8B": (shape("llama", 4096, 32, 32, 8, 14336, 128256), 8_030_261_248),
    "Llama-3.1-70B": (shape("llama", 8192, 80, 64, 8, 28672, 128256), 70_553_706_496),
    "Llama-3.1-405B": (shape("llama", 16384, 126, 128, 8, 53248, 128256), 405_853_388_800),
    "Llama-2-7b": (shape("llama", 4096, 32, 32, None, 11008, 32000), 6_738_415_616),
    "SmolLM2-135M": (shape("llama", 576, 30, 9, 3, 1536, 49152, tie_word_embeddings=True), 134_515_008),
    "Mistral-7B-v0.3": (shape("mistral", 4096, 32, 32, 8, 14336, 32768), 7_248_023_552),
    "Mixtral-8x7B": (shape("mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8), 46_702_792_704),
    "Qwen2.5-7B": (shape("qwen2", 3584, 28, 28, 4, 18944, 152064), 7_615_616_512),
    "Qwen2.5-0.5B": (shape("qwen2", 896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True), 494_032_768),
    "Qwen3-8B": (shape("qwen3", 4096, 36, 32, 8, 12288, 151936), 8_190_735_360),
    "Qwen3-30B-A3B": (
        shape("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, num_experts=128, moe_intermediate_size=768),
        30_532_122_624,
    ),
    "OLMo-2-7B": (shape("olmo2", 4096, 32, 32, None, 11008, 100352), 7_298_617_344),
    "gemma-2-9b": (shape("gemma2", 3584, 42, 16, 8, 14336, 256000), 9_241_705_984),
    "gemma-3-1b": (shape("gemma3_text", 1152, 26, 4, 1, 6912, 262144), 999_885_952),
    "gpt-oss-20b": (shape("gpt_oss", 2880, 24, 64, 8, 2880, 201088, num_local_experts=32), 20_914_757_184),
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
}


@pytest.mark.parametrize("model", EXCERPTS)
def test_parameters_of_a_published_model_add_up_to_its_count(model: str) -> None:
    config, published = EXCERPTS[model]
    assert count(config) == published


UNMOVED = {
    "DeepSeek-V3": "fp8",
    "Llama-3_3-Nemotron-Super-49B-v1": "nemotron-nas",
    "Llama-4-Scout-17B-16E-Instruct": "llama4",
    "Qwen3-32B-FP8": "fp8",
    "Qwen3-VL-8B-Instruct": "qwen3_vl",
    "chatglm": "chatglm",
    "gpt-oss-20b": "mxfp4",
    "llava-1.5-7b": "llava",
    "phi-2": "phi-msft",
    "rwkv5-3b": "rwkv5",
}
"""What the refusal names of a file whose tensors are not moved; most of them can be planned."""

FILES = {model: parameters for model, parameters in TOTAL.items() if model not in UNMOVED}


@pytest.mark.parametrize("model", FILES)
def test_parameters_of_a_file_add_up_to_the_published_count(model: str, data_dir: Path) -> None:
    assert count(read(data_dir, model)) == FILES[model]


@pytest.mark.parametrize("model", UNMOVED)
def test_file_of_a_model_that_is_not_moved_is_refused_by_what_it_is(model: str, data_dir: Path) -> None:
    with pytest.raises(JobFileError, match=f"'{UNMOVED[model]}' is not allowed"):
        count(read(data_dir, model))


def test_every_file_is_either_moved_or_refused(data_dir: Path) -> None:
    assert {path.stem for path in (data_dir / "hf_configs").glob("*.json")} == {*FILES, *UNMOVED}


def read(data_dir: Path, model: str) -> Config:
    config: Config = json.loads((data_dir / "hf_configs" / f"{model}.json").read_text(encoding="utf-8"))
    return config


def count(config: Config) -> int:
    model = parse_movable(config, "config.json")
    return sum(tensor.num_elements for tensor in dense_parameters(model.decoder, model.dtype))
