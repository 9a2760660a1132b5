"""The model families whose `config.json` can be read, and what each has that the file does not say.

Defaults are those of the family's configuration class in HF transformers, for files that leave a field out. A family that
is not here is refused by name: a tensor that nobody knows of would be lost when state moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nereus.spec.decoder import QkNorm


class Bias(StrEnum):
    """Which matrices of the attention, or of the MLP, have a bias."""

    NEVER = "never"
    ALWAYS = "always"
    DECLARED = "declared"
    """All, if `attention_bias` or `mlp_bias` says so."""
    QKV = "qkv"
    """Those of q, k and v; the output projection has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFields:
    """Where a family keeps the numbers of its experts."""

    count: tuple[str, ...]
    """Names of the field, the usual one first."""
    ffn_size: str = "intermediate_size"
    chosen_layers: bool = False
    """Whether `mlp_only_layers` and `decoder_sparse_step` leave some layers without experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a model_type says about the tensors of its models."""

    architecture: str
    """The class with a language-model head, as `architectures` names it."""
    num_kv_heads: int | None = None
    """Where the file has none; None: as many as there are query heads."""
    head_dim: int | None = None
    """Where the file has none; None: hidden size over query heads."""
    tied: bool = False
    """Where the file does not say."""
    bias: Bias = Bias.DECLARED
    declared_bias: bool = False
    """What `attention_bias` is where the file does not say."""
    mlp_bias: Bias = Bias.NEVER
    ffn_factor: int | None = None
    """Widths of the residual stream that make the MLP, where the file has no width of it; None: it must have one."""
    learnt_positions: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    qk_norm: QkNorm = QkNorm.NONE
    sinks: bool = False
    experts: ExpertFields | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What the family calls the common fields, where it has words of its own."""


GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

FAMILIES = {
    "llama": Family(architecture="LlamaForCausalLM", mlp_bias=Bias.DECLARED),
    "mistral": Family(architecture="MistralForCausalLM", num_kv_heads=8, bias=Bias.NEVER),
    "mixtral": Family(
        architecture="MixtralForCausalLM",
        num_kv_heads=8,
        bias=Bias.NEVER,
        experts=ExpertFields(count=("num_local_experts", "num_experts")),
    ),
    "qwen2": Family(architecture="Qwen2ForCausalLM", num_kv_heads=32, bias=Bias.QKV),
    "qwen3": Family(architecture="Qwen3ForCausalLM", num_kv_heads=32, head_dim=128, qk_norm=QkNorm.HEAD),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        num_kv_heads=4,
        qk_norm=QkNorm.HEAD,
        experts=ExpertFields(
            count=("num_experts", "num_local_experts"), ffn_size="moe_intermediate_size", chosen_layers=True
        ),
    ),
    "olmo2": Family(
        architecture="Olmo2ForCausalLM",
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm=QkNorm.PROJECTION,
    ),
    "gemma2": Family(architecture="Gemma2ForCausalLM", num_kv_heads=4, head_dim=256, tied=True, norms=GEMMA_NORMS),
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        num_kv_heads=4,
        head_dim=256,
        tied=True,
        norms=GEMMA_NORMS,
        qk_norm=QkNorm.HEAD,
    ),
    "gpt_oss": Family(
        architecture="GptOssForCausalLM",
        num_kv_heads=8,
        head_dim=64,
        declared_bias=True,
        sinks=True,
        experts=ExpertFields(count=("num_local_experts", "num_experts")),
    ),
    "gpt2": Family(
        architecture="GPT2LMHeadModel",
        tied=True,
        bias=Bias.ALWAYS,
        mlp_bias=Bias.ALWAYS,
        ffn_factor=4,
        learnt_positions=True,
        norms=("ln_1", "ln_2"),
        aliases={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
    ),
}
"""By `model_type`."""
