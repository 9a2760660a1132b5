"""The shape of a dense decoder, in the words of an HF `config.json`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict, ValidationInfo, field_validator

from nereus.spec.declared import Declared, Real, Whole
from nereus.spec.decoder import Decoder
from nereus.spec.weights import num_parameters


class ModelShape(Declared):
    """A Llama-shaped decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    hidden_size: Whole = Field(ge=1)
    """Width of the residual stream, in elements."""
    num_layers: Whole = Field(ge=1)
    """Decoder layers."""
    num_heads: Whole = Field(ge=1)
    """Query heads."""
    num_kv_heads: Whole = Field(ge=1)
    """Key and value heads; it divides num_heads."""
    head_dim: Whole = Field(ge=2, multiple_of=2)
    """Elements of one head; even, since rotary positions turn pairs."""
    ffn_size: Whole = Field(ge=1)
    """Width of the gated MLP, in elements."""
    vocab_size: Whole = Field(ge=2)
    """True number of tokens, never padded."""
    rope_theta: Real = Field(default=10_000.0, gt=0)
    """Base of the rotary frequencies."""
    norm_eps: Real = Field(default=1e-5, gt=0)
    """Added to the mean square in RMSNorm."""
    tie_embeddings: Annotated[bool, Strict()] = False
    """Whether the head is the transposed embedding: one logical tensor."""

    @field_validator("num_kv_heads")
    @classmethod
    def _kv_heads_divide_heads(cls, num_kv_heads: int, info: ValidationInfo) -> int:
        num_heads = info.data.get("num_heads")
        if num_heads is not None and num_heads % num_kv_heads:
            raise ValueError(f"it must divide num_heads, which is {num_heads}")
        return num_kv_heads

    @property
    def decoder(self) -> Decoder:
        """What its tensors depend on."""
        return Decoder(
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            ffn_size=self.ffn_size,
            vocab_size=self.vocab_size,
            tied=self.tie_embeddings,
        )

    @property
    def num_parameters(self) -> int:
        """Number of parameters, tied tensors counted once."""
        return num_parameters(self.decoder)


SMOLLM2 = ModelShape(
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    ffn_size=1536,
    vocab_size=49_152,
    rope_theta=100_000.0,
    norm_eps=1e-5,
    tie_embeddings=True,
)
"""SmolLM2-135M-Instruct, from its published `config.json`."""
