"""What decides which tensors a decoder has, and where they may be cut: the description that every model comes down to.

    job file -> ModelShape --.decoder--> Decoder <--hf_config.py-- config.json
                                            |
                             canonical tensors (nereus/layout/dense.py)

Nothing here says how a model computes: rotary bases, activations and windows have no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class QkNorm(StrEnum):
    """What the norms of queries and keys have a weight for."""

    NONE = "none"
    HEAD = "head"
    """Each element of a head; all heads share them (Qwen3, Gemma 3)."""
    PROJECTION = "projection"
    """Each element of the whole projection (OLMo 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the MLP."""

    count: int
    ffn_size: int
    """Width of one expert, in elements."""
    layers: frozenset[int]
    """The layers that have them; the others have a plain MLP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder with grouped-query attention, by what its tensors depend on."""

    family: str = "llama"
    """HF's `model_type`; it decides what the tensors are called, and which of them are fused."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    """True number of tokens, never padded."""
    tied: bool = False
    """Whether the head is the embedding: one logical tensor."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """The norms of a layer, by their HF names."""
    qk_norm: QkNorm = QkNorm.NONE
    qkv_bias: bool = False
    out_bias: bool = False
    """Whether the output projection of the attention has a bias."""
    mlp_bias: bool = False
    sinks: bool = False
    """Whether each query head has a learnt sink."""
    experts: Experts | None = None
    num_positions: int = 0
    """Learnt positions; 0 where they are computed."""
