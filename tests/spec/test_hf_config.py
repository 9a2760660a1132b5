"""What a config.json turns into, with HF's defaults, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.spec.decoder import QkNorm
from nereus.spec.families import FAMILIES
from nereus.spec.hf_config import is_hf_config, parse_hf_config, parse_movable
from nereus.spec.model import SMOLLM2

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip


def test_config_of_smollm2_is_the_decoder_of_the_native_shape() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    assert parse_hf_config(config, "config.json").decoder == SMOLLM2.decoder


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({}, "bfloat16"),
        ({"torch_dtype": None, "dtype": "float16"}, "float16"),
        ({"torch_dtype": "float32"}, "float32"),
        ({"torch_dtype": None}, "float32"),
    ],
)
def test_dtype_is_read_under_either_name_and_is_float32_without_one(fields: dict[str, Any], dtype: str) -> None:
    assert parse_hf_config(LLAMA | fields, "config.json").dtype == dtype


DEFAULTS = [
    ("llama", 32, 128, False),
    ("mistral", 8, 128, False),
    ("qwen2", 32, 128, False),
    ("olmo2", 32, 128, False),
    ("qwen3", 32, 128, False),
    ("gemma2", 4, 256, True),
    ("gemma3_text", 4, 256, True),
    ("gpt_oss", 8, 64, False),
]
"""Key-value heads, head dimension and tying of each configuration class of HF, for 32 query heads and hidden size 4096."""


@pytest.mark.parametrize(("family", "kv_heads", "head_dim", "tied"), DEFAULTS)
def test_fields_that_are_left_out_have_the_defaults_of_the_family(
    family: str, kv_heads: int, head_dim: int, tied: bool
) -> None:
    config = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "architectures")}
    decoder = parse_hf_config(config | {"model_type": family, "num_local_experts": 4}, "config.json").decoder
    assert (decoder.num_kv_heads, decoder.head_dim, decoder.tied) == (kv_heads, head_dim, tied)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_key_value_heads_that_are_null_are_as_many_as_query_heads(family: str) -> None:
    config = LLAMA | {"model_type": family, "architectures": None, "num_key_value_heads": None}
    assert parse_hf_config(config, "config.json").decoder.num_kv_heads == 32


def test_gpt2_is_read_in_its_own_words() -> None:
    decoder = parse_hf_config(GPT2 | {"n_inner": None}, "config.json").decoder
    assert (decoder.hidden_size, decoder.num_layers, decoder.num_heads, decoder.num_kv_heads) == (768, 12, 12, 12)
    assert (decoder.head_dim, decoder.ffn_size, decoder.num_positions, decoder.tied) == (64, 3072, 1024, True)
    assert parse_hf_config(GPT2 | {"n_inner": 1000}, "config.json").decoder.ffn_size == 1000


def test_experts_are_in_the_layers_that_the_config_leaves_them() -> None:
    config = LLAMA | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 6,
        "num_experts": 4,
        "moe_intermediate_size": 96,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    experts = parse_hf_config(config, "config.json").decoder.experts
    assert experts is not None
    assert (experts.count, experts.ffn_size, experts.active, sorted(experts.layers)) == (4, 96, 4, [1, 5])


def test_norms_over_heads_and_over_projections_are_told_apart() -> None:
    found = {family: known.qk_norm for family, known in FAMILIES.items() if known.qk_norm is not QkNorm.NONE}
    heads = dict.fromkeys(("qwen3", "qwen3_moe", "gemma3_text", "qwen3_vl_text"), QkNorm.HEAD)
    assert found == heads | {"olmo2": QkNorm.PROJECTION}


REFUSED = [
    ({"model_type": "falcon"}, "model_type: 'falcon'", "supported are llama, mistral, mixtral"),
    ({"model_type": "rwkv5"}, "model_type: 'rwkv5'", "it has no attention"),
    ({"model_type": "nemotron-nas"}, "model_type: 'nemotron-nas'", "its layers differ"),
    ({"model_type": None}, "model_type: None", "supported are llama"),
    ({"model_type": ["llama"]}, "model_type: ['llama']", "supported are llama"),
    (
        {"architectures": ["LlamaForSequenceClassification"]},
        "architectures: ['LlamaForSequenceClassification']",
        "supported is ['LlamaForCausalLM']",
    ),
    ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype: 'float8_e4m3fn'", "it must be bfloat16, float16 or float32"),
    ({"hidden_size": None}, "hidden_size: None", "the field is required"),
    ({"hidden_size": "4096"}, "hidden_size: '4096'", "it must be a whole number of 1 or more"),
    ({"num_hidden_layers": True}, "num_hidden_layers: True", "it must be a whole number of 1 or more"),
    ({"vocab_size": 0}, "vocab_size: 0", "it must be a whole number of 1 or more"),
    ({"num_attention_heads": [32, 16]}, "num_attention_heads: [32, 16]", "it must be a whole number of 1 or more"),
    ({"num_key_value_heads": 5}, "num_key_value_heads: 5", "it must divide num_attention_heads, which is 32"),
    ({"hidden_size": 4100}, "num_attention_heads: 32", "without head_dim it must divide the hidden size, which is 4100"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no'", "it must be true or false"),
    ({"attention_bias": 1}, "attention_bias: 1", "it must be true or false"),
]


@pytest.mark.parametrize(("fields", "seen", "allowed"), REFUSED)
def test_config_that_cannot_be_read_is_refused_with_field_value_and_fix(
    fields: dict[str, Any], seen: str, allowed: str
) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_hf_config(LLAMA | fields, "config.json")
    assert str(caught.value).startswith(f"config.json: {seen} is not allowed; ")
    assert allowed in str(caught.value)


UNMOVED = [
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.quant_method: 'fp8'", "unquantised checkpoint"),
    (
        {"model_type": "llama4_text", "architectures": None, "num_local_experts": 4},
        "model_type: 'llama4_text'",
        "planned and not moved",
    ),
]


@pytest.mark.parametrize(("fields", "seen", "reason"), UNMOVED)
def test_model_that_can_be_planned_only_is_refused_where_state_moves(fields: dict[str, Any], seen: str, reason: str) -> None:
    assert parse_hf_config(LLAMA | fields, "config.json").decoder.hidden_size == 4096
    with pytest.raises(JobFileError, match=re.escape(f"config.json: {seen} is not allowed; ") + f".*{reason}"):
        parse_movable(LLAMA | fields, "config.json")


def test_model_that_can_be_moved_is_the_same_where_state_moves() -> None:
    assert parse_movable(LLAMA, "config.json") == parse_hf_config(LLAMA, "config.json")


@pytest.mark.parametrize(("fields", "seen"), [({"num_experts": None}, "num_experts"), ({"mlp_only_layers": 3}, "mlp_only")])
def test_config_of_experts_that_cannot_be_read_is_refused(fields: dict[str, Any], seen: str) -> None:
    config = LLAMA | {"model_type": "qwen3_moe", "architectures": None, "num_experts": 4, "moe_intermediate_size": 96}
    with pytest.raises(JobFileError, match=rf"config\.json: {seen}"):
        parse_hf_config(config | fields, "config.json")


@pytest.mark.parametrize(
    ("data", "is_config"), [(LLAMA, True), (GPT2, True), ({"name": "job", "model": {}}, False), (3, False)]
)
def test_config_is_told_from_a_job_file_by_its_fields(data: object, is_config: bool) -> None:
    assert is_hf_config(data) == is_config


def test_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(JobFileError, match=r"config\.json: \[1\] is not allowed"):
        parse_hf_config([1], "config.json")
