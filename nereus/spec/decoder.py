"""What decides which tensors a decoder has, where they may be cut, and what it reads: the description of every model.

    job file -> ModelShape --.decoder--> Decoder <--hf_config.py-- config.json
                                            |
                 +--------------------------+---------------------------+
    canonical tensors (nereus/layout)   weights (weights.py)   contexts and KV cache (attention.py)
         what moves                        what plans count: parameters, products, bytes

Nothing here says how a model computes: rotary bases and activations have no tensors and cost nothing worth planning.
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
    active: int
    """Experts that one token passes through."""
    layers: frozenset[int]
    """The layers that have them; the others have a plain MLP."""
    shared_ffn_size: int = 0
    """Width of the shared experts together, through which every token passes; 0 without any."""
    bias: bool = False
    """Whether the matrices of the experts have biases."""
    router_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Keys and values of all heads come out of one compressed vector per token, which is all that the KV cache holds.
    """

    q_rank: int
    """Elements of the compressed query; 0 where queries are projected at once."""
    kv_rank: int
    """Elements of the compressed keys and values."""
    rope_dim: int
    """Elements of a key that carry its position: one key for all heads, at the end of each."""
    value_dim: int
    """Elements of a value head; keys have `head_dim`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Layers whose queries see part of the context only; the others see all of it."""

    size: int
    """Tokens: the last ones up to the query's own, or those of a chunk."""
    layers: frozenset[int]
    chunked: bool = False
    """Whether a query sees its own chunk up to itself (Llama 4), not the last `size` tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder, by what its tensors, its products and its KV cache depend on."""

    family: str = "llama"
    """HF's `model_type`; it decides what the tensors are called, and which of them are fused."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Elements of a query and of a key; of a value too, unless `latent` says otherwise."""
    ffn_size: int
    vocab_size: int
    """True number of tokens, never padded."""
    tied: bool = False
    """Whether the head is the embedding: one logical tensor."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """The norms of a layer that have weights, by their HF names."""
    norm_bias: bool = False
    """Whether norms have biases: LayerNorm rather than RMSNorm."""
    final_norm: bool = True
    """Whether the norm before the head has weights."""
    qk_norm: QkNorm = QkNorm.NONE
    qkv_bias: bool = False
    out_bias: bool = False
    """Whether the output projection of the attention has a bias."""
    gated: bool = True
    """Whether the MLP is gate, up and down, rather than up and down."""
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = False
    """Whether each query head has a learnt sink."""
    latent: LatentAttention | None = None
    experts: Experts | None = None
    window: Window | None = None
    num_positions: int = 0
    """Learnt positions; 0 where they are computed."""

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts in place of the MLP."""
        return self.experts is not None and layer in self.experts.layers

    @property
    def value_dim(self) -> int:
        """Elements of a value head."""
        return self.head_dim if self.latent is None else self.latent.value_dim


def tp_degrees(decoder: Decoder, most: int) -> tuple[int, ...]:
    """The degrees up to `most` into which tensor parallelism can cut it.

    No head is cut through, and every TP rank has the key-value heads that its query heads read: they divide, or repeat.
    """
    heads, kv_heads = decoder.num_heads, decoder.num_kv_heads
    whole = (degree for degree in range(1, min(heads, most) + 1) if heads % degree == 0)
    return tuple(degree for degree in whole if kv_heads % degree == 0 or degree % kv_heads == 0)


def ep_degrees(decoder: Decoder, most: int) -> tuple[int, ...]:
    """The degrees up to `most` into which expert parallelism can share the experts out whole; (1,) without experts."""
    count = 1 if decoder.experts is None else decoder.experts.count
    return tuple(degree for degree in range(1, min(count, most) + 1) if count % degree == 0)
