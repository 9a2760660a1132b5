"""The model families whose `config.json` can be read.

A family that is not here is refused by name: a tensor that nobody knows of would be lost when state moves, and a model that
nobody knows would be planned wrong. UNPLANNED says why, of those whose shape is known not to fit.
"""

from __future__ import annotations

from nereus.spec.decoder import QkNorm
from nereus.spec.family import Bias, ExpertFields, ExpertLayers, Family, WindowFields

GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

NO_RULE = "the tensors of this family have no rule for being cut yet, so it is planned and not moved"
OLD_NAMES = "its tensors have the names of an older checkpoint, so it is planned and not moved; take that of model_type phi"
NOT_TRAINED = (
    "the bias of its router is updated without gradients, for which state has no kind, so it is planned and not moved"
)

_SWITCHED = WindowFields(switched=True, size=4096)
_QWEN3_EXPERTS = ExpertFields(
    count=("num_experts", "num_local_experts"),
    active=8,
    ffn_size="moe_intermediate_size",
    layers=ExpertLayers.CHOSEN,
)
_GPT2_WORDS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}


def _phi(unmoved: str | None, aliases: dict[str, str]) -> Family:
    """One norm for attention and MLP, which run beside each other; both have biases, and the head has one."""
    return Family(
        architecture="PhiForCausalLM",
        unmoved=unmoved,
        bias=Bias.ALWAYS,
        gated=False,
        mlp_bias=Bias.ALWAYS,
        head_bias=True,
        ffn_factor=4,
        norms=("input_layernorm",),
        norm_bias=True,
        aliases=aliases,
        fixed={"qk_layernorm": False},
    )


def _deepseek(architecture: str, unmoved: str | None = None, *, router_bias: bool) -> Family:
    """MLA, and experts after some dense layers. Queries are compressed where the file has a rank for them."""
    return Family(
        architecture=architecture,
        unmoved=unmoved,
        latent=True,
        bias=Bias.NEVER,
        experts=ExpertFields(
            count=("n_routed_experts",),
            active=8,
            ffn_size="moe_intermediate_size",
            layers=ExpertLayers.AFTER_DENSE,
            shared="n_shared_experts",
            router_bias=router_bias,
        ),
        fixed={"attention_bias": False},
        left_out={"num_nextn_predict_layers": "layers of multi-token prediction"},
    )


FAMILIES = {
    "llama": Family(
        architecture="LlamaForCausalLM",
        mlp_bias=Bias.DECLARED,
        nested={
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 32000,
        },
    ),
    "mistral": Family(architecture="MistralForCausalLM", num_kv_heads=8, bias=Bias.NEVER, window=WindowFields(size=4096)),
    "mixtral": Family(
        architecture="MixtralForCausalLM",
        num_kv_heads=8,
        bias=Bias.NEVER,
        experts=ExpertFields(count=("num_local_experts", "num_experts"), active=2),
        window=WindowFields(),
    ),
    "qwen2": Family(architecture="Qwen2ForCausalLM", num_kv_heads=32, bias=Bias.QKV, window=_SWITCHED),
    "qwen3": Family(architecture="Qwen3ForCausalLM", num_kv_heads=32, head_dim=128, qk_norm=QkNorm.HEAD, window=_SWITCHED),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        num_kv_heads=4,
        qk_norm=QkNorm.HEAD,
        experts=_QWEN3_EXPERTS,
        window=_SWITCHED,
    ),
    "olmo": Family(architecture="OlmoForCausalLM", norms=(), final_norm=False),
    "olmo2": Family(
        architecture="Olmo2ForCausalLM",
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm=QkNorm.PROJECTION,
    ),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        num_kv_heads=4,
        head_dim=256,
        tied=True,
        norms=GEMMA_NORMS,
        window=WindowFields(size=4096, full_every=2),
    ),
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        num_kv_heads=4,
        head_dim=256,
        tied=True,
        norms=GEMMA_NORMS,
        qk_norm=QkNorm.HEAD,
        window=WindowFields(size=4096, full_every=6, full_every_field="sliding_window_pattern"),
        nested={"num_attention_heads": 8, "vocab_size": 262_208},
    ),
    "gpt_oss": Family(
        architecture="GptOssForCausalLM",
        num_kv_heads=8,
        head_dim=64,
        declared_bias=True,
        sinks=True,
        experts=ExpertFields(count=("num_local_experts", "num_experts"), active=4, bias=True, router_bias=True),
        window=WindowFields(size=128, full_every=2),
    ),
    "gpt2": Family(
        architecture="GPT2LMHeadModel",
        tied=True,
        bias=Bias.ALWAYS,
        gated=False,
        mlp_bias=Bias.ALWAYS,
        ffn_factor=4,
        learnt_positions=True,
        norms=("ln_1", "ln_2"),
        norm_bias=True,
        aliases=_GPT2_WORDS,
    ),
    "phi": _phi(None, {}),
    "phi-msft": _phi(OLD_NAMES, _GPT2_WORDS | {"num_key_value_heads": "n_head_kv"}),
    "phi3": Family(
        architecture="Phi3ForCausalLM",
        bias=Bias.NEVER,
        window=WindowFields(),
        fixed={"attention_bias": False, "mlp_bias": False},
    ),
    "chatglm": Family(
        architecture="ChatGLMModel",
        unmoved=NO_RULE,
        bias=Bias.QKV,
        aliases={
            "num_hidden_layers": "num_layers",
            "intermediate_size": "ffn_hidden_size",
            "vocab_size": "padded_vocab_size",
            "num_key_value_heads": "multi_query_group_num",
            "head_dim": "kv_channels",
        },
        fixed={
            "multi_query_attention": True,
            "add_qkv_bias": True,
            "add_bias_linear": False,
            "rmsnorm": True,
            "post_layer_norm": True,
        },
    ),
    "deepseek_v2": _deepseek("DeepseekV2ForCausalLM", router_bias=False),
    "deepseek_v3": _deepseek("DeepseekV3ForCausalLM", NOT_TRAINED, router_bias=True),
    "llama4_text": Family(
        architecture="Llama4ForCausalLM",
        unmoved=NO_RULE,
        num_kv_heads=8,
        head_dim=128,
        experts=ExpertFields(count=("num_local_experts",), active=1, layers=ExpertLayers.INTERLEAVED, num_shared=1),
        window=WindowFields(
            field="attention_chunk_size",
            size=8192,
            full_every=4,
            full_every_field="no_rope_layer_interval",
            chunked=True,
        ),
    ),
    "qwen3_vl_text": Family(
        architecture="Qwen3VLForCausalLM", unmoved=NO_RULE, num_kv_heads=32, head_dim=128, qk_norm=QkNorm.HEAD
    ),
}
"""By `model_type`."""

WRAPPERS = {
    "llava": "LlavaForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
}
"""Models with a decoder in `text_config` and a vision tower beside it: `model_type` -> its class."""

UNPLANNED = {
    **dict.fromkeys(
        ("rwkv", "rwkv5", "rwkv6", "mamba", "mamba2"),
        "it has no attention: its layers are recurrences, of which neither the work nor the state is understood",
    ),
    "nemotron-nas": "its layers differ (block_configs gives each an attention and an MLP of its own), and one shape is "
    "planned for all of them",
    **dict.fromkeys(
        ("jamba", "qwen3_next", "nemotron_h", "bamba", "falcon_h1"),
        "some of its layers are recurrences instead of attention, of which neither the work nor the state is understood",
    ),
    **dict.fromkeys(("t5", "mt5", "bart"), "it has an encoder, and decoders alone are understood"),
}
"""Why a model_type cannot be planned."""
