"""Which tensors a family has, and how tensor parallelism cuts those that Llama does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nereus.errors import TensorRuleError
from nereus.layout.dense import dense_parameters, state_spec
from nereus.layout.layout import Layout
from nereus.layout.tensors import CanonicalTensor, Kind, Place, pipeline_layers
from nereus.spec.decoder import Decoder, Experts, tp_degrees
from nereus.spec.families import FAMILIES
from nereus.spec.hf_config import parse_hf_config
from nereus.spec.weights import num_parameters, rank_parameters

LAYERS = 2


def small(model_type: str, **more: Any) -> Decoder:
    """8 query heads and 2 key-value heads of 4 elements, an MLP of 12, 2 layers, 17 tokens."""
    config: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": 16,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "intermediate_size": 12,
        "vocab_size": 17,
    }
    return parse_hf_config({**config, **more}, "config.json").decoder


def small_gpt2(**more: Any) -> Decoder:
    """4 heads of 2 elements, an MLP of 32, 5 positions."""
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": LAYERS, "n_head": 4, "n_positions": 5, "vocab_size": 17}
    return parse_hf_config({**config, **more}, "config.json").decoder


def tensors(decoder: Decoder) -> dict[str, CanonicalTensor]:
    return {tensor.name: tensor for tensor in dense_parameters(decoder, "float32")}


def of_layer(decoder: Decoder, layer: int = 0) -> dict[str, tuple[int, ...]]:
    """The shapes of one layer, by name without its number."""
    found = [tensor for tensor in dense_parameters(decoder, "float32") if tensor.layer == layer]
    return {tensor.name.partition(f".{layer}.")[2]: tensor.shape for tensor in found}


def held(tensor: CanonicalTensor, tp: int, rank: int) -> list[np.ndarray[Any, Any]]:
    """The values that a TP rank holds of a tensor whose elements are numbered, box by box."""
    values = np.arange(tensor.num_elements).reshape(tensor.shape)
    return [values[box.slices((0,) * values.ndim)] for box in tensor.boxes(Layout(tp), rank, LAYERS)]


LLAMA = {
    "input_layernorm.weight": (16,),
    "self_attn.q_proj.weight": (32, 16),
    "self_attn.k_proj.weight": (8, 16),
    "self_attn.v_proj.weight": (8, 16),
    "self_attn.o_proj.weight": (16, 32),
    "post_attention_layernorm.weight": (16,),
    "mlp.gate_proj.weight": (12, 16),
    "mlp.up_proj.weight": (12, 16),
    "mlp.down_proj.weight": (16, 12),
}
QKV_BIAS = {"self_attn.q_proj.bias": (32,), "self_attn.k_proj.bias": (8,), "self_attn.v_proj.bias": (8,)}
OUT_BIAS = {"self_attn.o_proj.bias": (16,)}
MLP_BIAS = {"mlp.gate_proj.bias": (12,), "mlp.up_proj.bias": (12,), "mlp.down_proj.bias": (16,)}
FFN_NORMS = {"pre_feedforward_layernorm.weight": (16,), "post_feedforward_layernorm.weight": (16,)}
HEAD_NORMS = {"self_attn.q_norm.weight": (4,), "self_attn.k_norm.weight": (4,)}


def without(names: dict[str, tuple[int, ...]], *prefixes: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in names.items() if not name.startswith(prefixes)}


LAYER_OF = {
    "llama": (small("llama"), LLAMA),
    "llama with all biases": (
        small("llama", attention_bias=True, mlp_bias=True),
        LLAMA | QKV_BIAS | OUT_BIAS | MLP_BIAS,
    ),
    "mistral": (small("mistral", attention_bias=True), LLAMA),
    "qwen2": (small("qwen2"), LLAMA | QKV_BIAS),
    "qwen3": (small("qwen3"), LLAMA | HEAD_NORMS),
    "gemma2": (small("gemma2"), LLAMA | FFN_NORMS),
    "gemma3_text": (small("gemma3_text"), LLAMA | FFN_NORMS | HEAD_NORMS),
    "olmo2": (
        small("olmo2"),
        without(LLAMA, "input_")
        | {"self_attn.q_norm.weight": (32,), "self_attn.k_norm.weight": (8,), "post_feedforward_layernorm.weight": (16,)},
    ),
    "mixtral": (
        small("mixtral", num_local_experts=2),
        without(LLAMA, "mlp")
        | {"block_sparse_moe.gate.weight": (2, 16)}
        | {f"block_sparse_moe.experts.{e}.{w}.weight": (12, 16) for e in range(2) for w in ("w1", "w3")}
        | {f"block_sparse_moe.experts.{e}.w2.weight": (16, 12) for e in range(2)},
    ),
    "qwen3_moe": (
        small("qwen3_moe", num_experts=2, moe_intermediate_size=6),
        without(LLAMA, "mlp")
        | HEAD_NORMS
        | {"mlp.gate.weight": (2, 16)}
        | {f"mlp.experts.{e}.{part}_proj.weight": (6, 16) for e in range(2) for part in ("gate", "up")}
        | {f"mlp.experts.{e}.down_proj.weight": (16, 6) for e in range(2)},
    ),
    "gpt_oss": (
        small("gpt_oss", num_local_experts=3),
        without(LLAMA, "mlp")
        | QKV_BIAS
        | OUT_BIAS
        | {
            "self_attn.sinks": (8,),
            "mlp.router.weight": (3, 16),
            "mlp.router.bias": (3,),
            "mlp.experts.gate_up_proj": (3, 16, 24),
            "mlp.experts.gate_up_proj_bias": (3, 24),
            "mlp.experts.down_proj": (3, 12, 16),
            "mlp.experts.down_proj_bias": (3, 16),
        },
    ),
    "gpt2": (
        small_gpt2(),
        {
            "ln_1.weight": (8,),
            "ln_1.bias": (8,),
            "attn.c_attn.weight": (8, 24),
            "attn.c_attn.bias": (24,),
            "attn.c_proj.weight": (8, 8),
            "attn.c_proj.bias": (8,),
            "ln_2.weight": (8,),
            "ln_2.bias": (8,),
            "mlp.c_fc.weight": (8, 32),
            "mlp.c_fc.bias": (32,),
            "mlp.c_proj.weight": (32, 8),
            "mlp.c_proj.bias": (8,),
        },
    ),
}


MLA = {"kv_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 4}
DEEPSEEK = MLA | {"n_routed_experts": 2, "n_shared_experts": 2, "moe_intermediate_size": 6, "first_k_dense_replace": 0}
DEEPSEEK_LAYER = {
    "input_layernorm.weight": (16,),
    "self_attn.kv_a_proj_with_mqa.weight": (5 + 2, 16),
    "self_attn.kv_a_layernorm.weight": (5,),
    "self_attn.kv_b_proj.weight": (8 * (3 + 4), 5),
    "self_attn.o_proj.weight": (16, 8 * 4),
    "post_attention_layernorm.weight": (16,),
    "mlp.gate.weight": (2, 16),
    **{f"mlp.experts.{e}.{part}_proj.weight": (6, 16) for e in range(2) for part in ("gate", "up")},
    **{f"mlp.experts.{e}.down_proj.weight": (16, 6) for e in range(2)},
    **{f"mlp.shared_experts.{part}_proj.weight": (12, 16) for part in ("gate", "up")},
    "mlp.shared_experts.down_proj.weight": (16, 12),
}
LAYER_OF |= {
    "olmo": (small("olmo"), without(LLAMA, "input_", "post_")),
    "phi3": (
        small("phi3"),
        without(LLAMA, "self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up")
        | {"self_attn.qkv_proj.weight": (32 + 8 + 8, 16), "mlp.gate_up_proj.weight": (24, 16)},
    ),
    "phi": (
        small("phi"),
        without(LLAMA, "self_attn.o", "mlp", "post_")
        | QKV_BIAS
        | {
            "input_layernorm.bias": (16,),
            "self_attn.dense.weight": (16, 32),
            "self_attn.dense.bias": (16,),
            "mlp.fc1.weight": (12, 16),
            "mlp.fc1.bias": (12,),
            "mlp.fc2.weight": (16, 12),
            "mlp.fc2.bias": (16,),
        },
    ),
    "deepseek_v2": (
        small("deepseek_v2", **DEEPSEEK),
        DEEPSEEK_LAYER | {"self_attn.q_proj.weight": (8 * (3 + 2), 16)},
    ),
    "deepseek_v2 with compressed queries": (
        small("deepseek_v2", **DEEPSEEK, q_lora_rank=6),
        DEEPSEEK_LAYER
        | {
            "self_attn.q_a_proj.weight": (6, 16),
            "self_attn.q_a_layernorm.weight": (6,),
            "self_attn.q_b_proj.weight": (8 * (3 + 2), 6),
        },
    ),
}


@pytest.mark.parametrize("family", LAYER_OF)
def test_layer_has_the_tensors_of_its_checkpoint(family: str) -> None:
    decoder, expected = LAYER_OF[family]
    assert of_layer(decoder) == of_layer(decoder, 1) == expected


def test_layers_without_experts_have_an_mlp() -> None:
    experts = {"num_experts": 2, "moe_intermediate_size": 6}
    decoder = small("qwen3_moe", **experts, num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3])
    with_experts = [layer for layer in range(4) if "mlp.gate.weight" in of_layer(decoder, layer)]
    with_mlp = [layer for layer in range(4) if "mlp.gate_proj.weight" in of_layer(decoder, layer)]
    assert (with_experts, with_mlp) == ([1], [0, 2, 3])


@pytest.mark.parametrize(
    ("decoder", "embed"), [(small("gemma2"), "model.embed_tokens.weight"), (small_gpt2(), "transformer.wte.weight")]
)
def test_tied_head_is_the_embedding_on_both_ends(decoder: Decoder, embed: str) -> None:
    found = tensors(decoder)
    assert found[embed].place is Place.ENDS
    assert "lm_head.weight" not in found


def test_untied_gpt2_has_a_head_on_the_last_rank_and_positions_on_the_first() -> None:
    found = tensors(small_gpt2(tie_word_embeddings=False))
    assert found["lm_head.weight"].place is Place.LAST
    assert (found["transformer.wpe.weight"].place, found["transformer.wpe.weight"].shape) == (Place.FIRST, (5, 8))
    assert [name for name, tensor in found.items() if tensor.place is Place.LAST] == [
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
        "lm_head.weight",
    ]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_fused_q_k_v_of_gpt2_are_columns_that_are_cut_each_on_its_own(tp: int) -> None:
    found = tensors(small_gpt2())
    matrix, bias = found["transformer.h.1.attn.c_attn.weight"], found["transformer.h.1.attn.c_attn.bias"]
    for rank in range(tp):
        for tensor, axis in ((matrix, 1), (bias, 0)):
            values = np.arange(tensor.num_elements).reshape(tensor.shape)
            expected = [np.split(part, tp, axis=axis)[rank] for part in np.split(values, 3, axis=axis)]
            for mine, wanted in zip(held(tensor, tp, rank), expected, strict=True):
                np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_matrices_of_gpt2_that_add_up_are_cut_on_their_rows_and_their_biases_are_whole(tp: int) -> None:
    found = tensors(small_gpt2())
    for part in ("attn.c_proj", "mlp.c_proj"):
        matrix, bias = found[f"transformer.h.0.{part}.weight"], found[f"transformer.h.0.{part}.bias"]
        values = np.arange(matrix.num_elements).reshape(matrix.shape)
        for rank in range(tp):
            np.testing.assert_array_equal(held(matrix, tp, rank)[0], np.split(values, tp, axis=0)[rank])
            assert held(bias, tp, rank)[0].shape == bias.shape


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_gate_and_up_columns_of_gpt_oss_stay_together_and_fit_the_rows_of_down(tp: int) -> None:
    found = tensors(small("gpt_oss", num_local_experts=3))
    gate_up, down = (found[f"model.layers.0.mlp.experts.{name}_proj"] for name in ("gate_up", "down"))
    for rank in range(tp):
        (box,) = gate_up.boxes(Layout(tp), rank, LAYERS)
        (rows,) = down.boxes(Layout(tp), rank, LAYERS)
        assert (box.low[2], box.high[2]) == (2 * rows.low[1], 2 * rows.high[1])
        assert box.high[0] - box.low[0] == 3


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_every_rank_has_a_slice_of_every_expert(tp: int) -> None:
    found = tensors(small("qwen3_moe", num_experts=3, moe_intermediate_size=8))
    for expert in range(3):
        for part, shape in (("gate", (8 // tp, 16)), ("up", (8 // tp, 16)), ("down", (16, 8 // tp))):
            tensor = found[f"model.layers.0.mlp.experts.{expert}.{part}_proj.weight"]
            assert [held(tensor, tp, rank)[0].shape for rank in range(tp)] == [shape] * tp


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_biases_of_q_k_v_are_cut_as_their_matrices_with_key_value_heads_repeated(tp: int) -> None:
    found = tensors(small("qwen2"))
    for part in "qkv":
        matrix, bias = (found[f"model.layers.0.self_attn.{part}_proj.{kind}"] for kind in ("weight", "bias"))
        for rank in range(tp):
            (rows,), (entries,) = (tensor.boxes(Layout(tp), rank, LAYERS) for tensor in (matrix, bias))
            assert (rows.low[0], rows.high[0]) == (entries.low[0], entries.high[0])
            assert (entries.high[0] - entries.low[0]) % 4 == 0
            assert part == "q" or entries.high[0] - entries.low[0] == 8 // min(tp, 2)


@pytest.mark.parametrize("family", ["qwen3", "olmo2", "gemma3_text"])
def test_norms_of_queries_and_keys_are_whole_on_every_rank(family: str) -> None:
    for name, tensor in tensors(small(family)).items():
        if "_norm" in name:
            assert [held(tensor, 4, rank)[0].shape for rank in range(4)] == [tensor.shape] * 4


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_fused_q_k_v_and_gate_up_of_phi3_are_rows_that_are_cut_each_on_its_own(tp: int) -> None:
    found = tensors(small("phi3"))
    q_k_v, gate_up = found["model.layers.1.self_attn.qkv_proj.weight"], found["model.layers.1.mlp.gate_up_proj.weight"]
    values = np.arange(q_k_v.num_elements).reshape(q_k_v.shape)
    for rank in range(tp):
        kv = rank * 2 // tp if tp > 2 else rank
        each = 4 * max(2 // tp, 1)
        expected = [
            np.split(values[:32], tp)[rank],
            values[32 + each * kv : 32 + each * (kv + 1)],
            values[40 + each * kv : 40 + each * (kv + 1)],
        ]
        for mine, wanted in zip(held(q_k_v, tp, rank), expected, strict=True):
            np.testing.assert_array_equal(mine, wanted)
        gate, up = gate_up.boxes(Layout(tp), rank, LAYERS)
        assert (gate.low[0] + 12, gate.high[0] + 12) == (up.low[0], up.high[0])


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_latent_attention_is_cut_by_heads_and_what_compresses_is_whole(tp: int) -> None:
    found = tensors(small("deepseek_v2", **DEEPSEEK, q_lora_rank=6))
    grains = {"q_b": (0, 3 + 2), "kv_b": (0, 3 + 4), "o": (1, 4)}
    for rank in range(tp):
        for name, (axis, grain) in grains.items():
            (box,) = found[f"model.layers.0.self_attn.{name}_proj.weight"].boxes(Layout(tp), rank, LAYERS)
            assert (box.low[axis], box.high[axis]) == (rank * 8 // tp * grain, (rank + 1) * 8 // tp * grain)
        for name in ("q_a_proj", "kv_a_proj_with_mqa", "q_a_layernorm", "kv_a_layernorm"):
            tensor = found[f"model.layers.0.self_attn.{name}.weight"]
            assert held(tensor, tp, rank)[0].shape == tensor.shape


def test_head_of_phi_has_a_bias_that_is_cut_with_it() -> None:
    found = tensors(small("phi"))
    head, bias = found["lm_head.weight"], found["lm_head.bias"]
    assert (bias.place, bias.shape) == (Place.LAST, (17,))
    for rank in range(4):
        (rows,), (entries,) = (tensor.boxes(Layout(4), rank, LAYERS) for tensor in (head, bias))
        assert (rows.low[0], rows.high[0]) == (entries.low[0], entries.high[0])
    assert found["model.final_layernorm.bias"].place is Place.LAST


def test_olmo_has_no_norm_with_weights() -> None:
    assert [name for name in tensors(small("olmo")) if "norm" in name] == []


def test_sinks_go_with_their_query_heads() -> None:
    sinks = tensors(small("gpt_oss", num_local_experts=1))["model.layers.0.self_attn.sinks"]
    assert [list(held(sinks, 4, rank)[0]) for rank in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_trained_with_float32_masters_and_moments(dtype: str) -> None:
    state = state_spec(small("llama"), dtype, (), optimizer=True)
    assert state_bytes_per_parameter(state.tensors) == {
        Kind.PARAMETER: 2,
        Kind.MASTER: 4,
        Kind.EXP_AVG: 4,
        Kind.EXP_AVG_SQ: 4,
    }


def test_float32_is_trained_without_masters() -> None:
    state = state_spec(small("llama"), "float32", (), optimizer=True)
    assert state_bytes_per_parameter(state.tensors) == {Kind.PARAMETER: 4, Kind.EXP_AVG: 4, Kind.EXP_AVG_SQ: 4}


def state_bytes_per_parameter(found: tuple[CanonicalTensor, ...]) -> dict[Kind, float]:
    count = sum(tensor.num_elements for tensor in found if tensor.kind is Kind.PARAMETER)
    kinds = dict.fromkeys(tensor.kind for tensor in found)
    return {kind: sum(t.num_elements * t.item_bytes for t in found if t.kind is kind) / count for kind in kinds}


SHAPE: dict[str, Any] = {
    "hidden_size": 8, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "head_dim": 4, "ffn_size": 4, "vocab_size": 9,
}  # fmt: skip


def test_experts_of_a_family_without_a_rule_are_refused_by_name() -> None:
    experts = Experts(count=2, ffn_size=4, active=1, layers=frozenset((0,)))
    with pytest.raises(TensorRuleError, match="the experts of llama have no rule"):
        dense_parameters(Decoder(family="llama", experts=experts, **SHAPE), "float32")


@pytest.mark.parametrize("family", ["other", *(name for name, known in FAMILIES.items() if known.unmoved)])
def test_tensors_of_a_family_that_is_not_moved_are_refused_by_name(family: str) -> None:
    with pytest.raises(TensorRuleError, match=f"the tensors of {family} have no rule"):
        dense_parameters(Decoder(family=family, **SHAPE), "float32")


@pytest.mark.parametrize("family", LAYER_OF)
def test_weights_that_plans_are_counted_from_are_those_of_the_tensors(family: str) -> None:
    decoder, _ = LAYER_OF[family]
    counted = sum(tensor.num_elements for tensor in dense_parameters(decoder, "float32"))
    assert num_parameters(decoder) == counted


@pytest.mark.parametrize("family", LAYER_OF)
@pytest.mark.parametrize("pp", [1, 2])
def test_fullest_rank_has_as_many_parameters_as_it_holds_of_the_tensors(family: str, pp: int) -> None:
    decoder, _ = LAYER_OF[family]
    found = dense_parameters(decoder, "float32")
    for tp in tp_degrees(decoder, 8):
        layout = Layout(tp, pp)
        for stage in range(pp):
            held = [
                sum(box.volume for tensor in found for box in tensor.boxes(layout, rank, LAYERS))
                for rank in range(layout.size)
                if layout.coordinate(rank).pp == stage
            ]
            mine = pipeline_layers(LAYERS, pp, stage)
            counted = rank_parameters(decoder, mine, first=stage == 0, last=stage == pp - 1, tp=tp)
            # Vocabulary (17) and MLP (12) are not cut evenly, and the fullest rank of each is not always the same one.
            assert max(held) <= counted <= max(held) * 1.05
