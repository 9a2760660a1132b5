"""What the families beyond the Llama shape are read as: latent attention, windows, experts, nested and quantised configs."""

from __future__ import annotations

from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.spec.decoder import Decoder, LatentAttention, Window, ep_degrees, tp_degrees
from nereus.spec.hf_config import HfModel, parse_hf_config

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
}
MLA = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
DEEPSEEK = SHAPE | MLA | {
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 10,
    "first_k_dense_replace": 2,
}  # fmt: skip


def read(model_type: str, shape: dict[str, Any] = SHAPE, **more: Any) -> HfModel:
    return parse_hf_config({"model_type": model_type, **shape, **more}, "config.json")


def decoder(model_type: str, shape: dict[str, Any] = SHAPE, **more: Any) -> Decoder:
    return read(model_type, shape, **more).decoder


def windowed(model_type: str, **more: Any) -> tuple[int, list[int]] | None:
    window = decoder(model_type, **more).window
    return None if window is None else (window.size, sorted(window.layers))


def test_latent_attention_has_its_ranks_and_as_many_key_value_heads_as_queries() -> None:
    found = decoder("deepseek_v3", DEEPSEEK, q_lora_rank=24)
    assert found.latent == LatentAttention(q_rank=24, kv_rank=16, rope_dim=4, value_dim=6)
    assert (found.num_kv_heads, found.head_dim, found.value_dim) == (8, 12, 6)
    assert decoder("deepseek_v2", DEEPSEEK, q_lora_rank=None).latent == LatentAttention(
        q_rank=0, kv_rank=16, rope_dim=4, value_dim=6
    )


def test_deepseek_has_shared_experts_and_experts_after_its_dense_layers() -> None:
    experts = decoder("deepseek_v2", DEEPSEEK).experts
    assert experts is not None
    assert (experts.count, experts.active, experts.ffn_size, experts.shared_ffn_size) == (6, 3, 10, 20)
    assert sorted(experts.layers) == [2, 3, 4, 5, 6, 7]
    assert sorted(decoder("deepseek_v2", DEEPSEEK, moe_layer_freq=3).experts.layers) == [3, 6]  # type: ignore[union-attr]


def test_layers_of_multi_token_prediction_are_left_out_and_keep_state_from_moving() -> None:
    found = read("deepseek_v3", DEEPSEEK, num_nextn_predict_layers=1)
    assert found.left_out == ("1 layers of multi-token prediction",)
    assert "1 layers of multi-token prediction would be lost" in found.unmoved[-1].allowed
    assert read("deepseek_v3", DEEPSEEK).left_out == ()


def test_more_experts_per_token_than_there_are_is_refused() -> None:
    with pytest.raises(JobFileError, match="num_experts_per_tok: 7 is not allowed; it must be at most the 6 experts"):
        decoder("deepseek_v2", DEEPSEEK | {"num_experts_per_tok": 7})


LLAMA4 = SHAPE | {"num_local_experts": 4, "intermediate_size_mlp": 200, "interleave_moe_layer_step": 2}


def test_llama4_has_one_shared_expert_interleaved_with_wider_dense_layers() -> None:
    found = decoder("llama4_text", LLAMA4)
    assert found.experts is not None
    assert (found.ffn_size, found.experts.ffn_size, found.experts.shared_ffn_size, found.experts.active) == (200, 96, 96, 1)
    assert sorted(found.experts.layers) == [1, 3, 5, 7]


def test_llama4_attends_in_chunks_except_in_every_fourth_layer() -> None:
    window = decoder("llama4_text", LLAMA4, attention_chunk_size=32).window
    assert window == Window(size=32, layers=frozenset((0, 1, 2, 4, 5, 6)), chunked=True)


ALL, EVEN = list(range(8)), [0, 2, 4, 6]
WINDOWS = [
    ("llama", {"sliding_window": 16}, None),
    ("mistral", {}, (4096, ALL)),
    ("mistral", {"sliding_window": None}, None),
    ("mixtral", {"num_local_experts": 2}, None),
    ("phi3", {"sliding_window": 2047}, (2047, ALL)),
    ("phi3", {}, None),
    ("qwen2", {"sliding_window": 32, "max_window_layers": 6}, None),
    ("qwen2", {"sliding_window": 32, "max_window_layers": 6, "use_sliding_window": True}, (32, [6, 7])),
    ("qwen3", {"sliding_window": 32, "max_window_layers": 8, "use_sliding_window": True}, None),
    ("gemma2", {"sliding_window": 4096}, (4096, EVEN)),
    ("gemma3_text", {"sliding_window": 512}, (512, [0, 1, 2, 3, 4, 6, 7])),
    ("gemma3_text", {"sliding_window": 512, "sliding_window_pattern": 4}, (512, [0, 1, 2, 4, 5, 6])),
    ("gpt_oss", {"num_local_experts": 2}, (128, EVEN)),
    (
        "gpt_oss",
        {"num_local_experts": 2, "layer_types": ["full_attention"] * 7 + ["sliding_attention"]},
        (128, [7]),
    ),
]
"""Windows of HF's configuration classes: `layer_types` as they make them where a file has none."""


@pytest.mark.parametrize(("model_type", "fields", "expected"), WINDOWS)
def test_window_is_that_of_the_configuration_class(
    model_type: str, fields: dict[str, Any], expected: tuple[int, list[int]] | None
) -> None:
    assert windowed(model_type, **fields) == expected


@pytest.mark.parametrize("types", [["full_attention"], ["linear_attention"] * 8, "sliding_attention"])
def test_layers_of_a_kind_that_is_not_understood_are_refused(types: object) -> None:
    with pytest.raises(JobFileError, match=r"layer_types: .* each of the 8 layers must be full_attention or sliding"):
        decoder("gemma2", layer_types=types)


def test_phi_is_read_in_its_own_words() -> None:
    words = {"n_embd": 64, "n_layer": 8, "n_head": 8, "n_head_kv": None, "n_inner": None, "vocab_size": 100}
    found = decoder("phi-msft", words)
    assert (found.hidden_size, found.num_layers, found.num_kv_heads, found.ffn_size) == (64, 8, 8, 256)
    assert (found.gated, found.norms, found.norm_bias, found.head_bias) == (False, ("input_layernorm",), True, True)


CHATGLM = {
    "hidden_size": 64,
    "num_layers": 8,
    "num_attention_heads": 8,
    "multi_query_group_num": 2,
    "kv_channels": 8,
    "ffn_hidden_size": 96,
    "padded_vocab_size": 128,
}


def test_chatglm_is_read_in_its_own_words() -> None:
    found = decoder("chatglm", CHATGLM)
    assert (found.num_layers, found.num_kv_heads, found.head_dim, found.ffn_size, found.vocab_size) == (8, 2, 8, 96, 128)
    assert (found.qkv_bias, found.out_bias) == (True, False)


@pytest.mark.parametrize(
    ("model_type", "shape", "field", "value"),
    [
        ("chatglm", CHATGLM, "add_bias_linear", True),
        ("chatglm", CHATGLM, "multi_query_attention", False),
        ("phi", SHAPE, "qk_layernorm", True),
        ("deepseek_v2", DEEPSEEK, "attention_bias", True),
    ],
)
def test_switch_that_would_change_the_tensors_is_refused(
    model_type: str, shape: dict[str, Any], field: str, value: bool
) -> None:
    with pytest.raises(JobFileError, match=f"{field}: {value} is not allowed; it must be {str(not value).lower()}"):
        decoder(model_type, shape | {field: value})


def test_quantised_checkpoint_is_planned_in_the_dtype_that_it_is_trained_in() -> None:
    quantised = {"quantization_config": {"quant_method": "mxfp4"}}
    assert read("llama", **quantised).dtype == "bfloat16"
    assert read("llama", **quantised, torch_dtype="float16").dtype == "float16"
    assert decoder("llama", **quantised) == decoder("llama")


TOWER = {"model_type": "clip_vision_model", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
CLIP = TOWER | {"image_size": 4, "patch_size": 2}


def llava(**more: Any) -> HfModel:
    text = {"model_type": "llama", **SHAPE, **more.pop("text", {})}
    return parse_hf_config({"model_type": "llava", "text_config": text, "vision_config": CLIP, **more}, "config.json")


def test_language_model_of_a_vision_model_is_planned_and_its_tower_counted() -> None:
    found = llava(torch_dtype="float16")
    assert (found.decoder, found.dtype, found.left_out) == (decoder("llama"), "float16", ())
    block = 4 * (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8) + 4 * 8
    patches, positions, ends = 3 * 2 * 2 * 8, (4 + 1) * 8, 8 + 4 * 8
    projector = (8 * 64 + 64) + (64 * 64 + 64)
    assert found.vision_parameters == patches + positions + ends + 2 * block + projector
    assert "vision tower" in found.unmoved[0].allowed


def test_tower_that_cannot_be_counted_is_said_to_be_left_out() -> None:
    for vision in (None, {"model_type": "pixtral"}):
        found = llava(vision_config=vision)
        assert (found.vision_parameters, found.left_out) == (0, ("the vision tower and its projector",))


def test_gemma3_with_its_tower_has_as_many_parameters_as_its_card() -> None:
    """gemma-3-4b-it: 4,300,079,472 by its safetensors; its text_config names little."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "image_size": 896,
        "patch_size": 14,
    }
    found = parse_hf_config({"model_type": "gemma3", "text_config": text, "vision_config": vision}, "config.json")
    assert found.num_parameters == 4_300_079_472


PHI3 = {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32}
OLMO = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
DEEPSEEK_V2 = {
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    ("model_type", "shape", "vocab_size", "published"),
    [
        ("phi3", PHI3, 32064, 3_821_079_552),  # Phi-3-mini-4k-instruct
        ("olmo", OLMO, 50304, 6_888_095_744),  # OLMo-7B-hf
        ("deepseek_v2", DEEPSEEK_V2, 102400, 235_741_434_880),  # DeepSeek-V2
    ],
)
def test_published_models_of_other_families_have_as_many_parameters_as_their_cards(
    model_type: str, shape: dict[str, Any], vocab_size: int, published: int
) -> None:
    assert read(model_type, shape | {"vocab_size": vocab_size}).num_parameters == published


def test_text_config_leaves_out_what_is_the_default_of_its_class() -> None:
    found = parse_hf_config({"model_type": "llava", "text_config": {"model_type": "llama"}}, "config.json").decoder
    assert (found.hidden_size, found.num_layers, found.num_heads, found.num_kv_heads) == (4096, 32, 32, 32)
    assert (found.ffn_size, found.vocab_size) == (11008, 32000)


def test_field_of_a_text_config_is_named_with_its_path() -> None:
    with pytest.raises(JobFileError, match=r"config\.json: text_config: vocab_size: 0 is not allowed"):
        llava(text={"vocab_size": 0})
    with pytest.raises(JobFileError, match=r"config\.json: text_config: None is not allowed"):
        parse_hf_config({"model_type": "llava"}, "config.json")
    with pytest.raises(JobFileError, match=r"architectures: .* supported is"):
        llava(architectures=["LlavaForSomething"])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (decoder("llama"), (1, 2, 4, 8)),
        (decoder("llama", num_attention_heads=6, num_key_value_heads=3, head_dim=8), (1, 3, 6)),
        (decoder("llama", num_key_value_heads=1), (1, 2, 4, 8)),
        (decoder("deepseek_v2", DEEPSEEK), (1, 2, 4, 8)),
        (decoder("llama", num_attention_heads=14, num_key_value_heads=2, head_dim=8), (1, 2, 14)),
    ],
)
def test_tp_degrees_divide_the_heads_and_repeat_or_share_out_the_key_value_heads(
    found: Decoder, expected: tuple[int, ...]
) -> None:
    assert tp_degrees(found, 64) == expected
    assert tp_degrees(found, 2) == tuple(degree for degree in expected if degree <= 2)


def test_ep_degrees_share_the_experts_out_whole() -> None:
    assert ep_degrees(decoder("deepseek_v2", DEEPSEEK), 64) == (1, 2, 3, 6)
    assert ep_degrees(decoder("deepseek_v2", DEEPSEEK), 4) == (1, 2, 3)
    assert ep_degrees(decoder("llama"), 64) == (1,)
