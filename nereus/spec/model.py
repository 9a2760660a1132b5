"""The shape of a dense decoder, in the words of an HF `config.json`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ModelShape(BaseModel):
    """A Llama-shaped decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden_size: int = Field(ge=1)
    """Width of the residual stream, in elements."""
    num_layers: int = Field(ge=1)
    """Decoder layers."""
    num_heads: int = Field(ge=1)
    """Query heads."""
    num_kv_heads: int = Field(ge=1)
    """Key and value heads; it divides num_heads."""
    head_dim: int = Field(ge=2, multiple_of=2)
    """Elements of one head; even, since rotary positions turn pairs."""
    ffn_size: int = Field(ge=1)
    """Width of the gated MLP, in elements."""
    vocab_size: int = Field(ge=2)
    """True number of tokens, never padded."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary frequencies."""
    norm_eps: float = Field(default=1e-5, gt=0)
    """Added to the mean square in RMSNorm."""
    tie_embeddings: bool = False
    """Whether the head is the transposed embedding: one logical tensor."""

    @model_validator(mode="after")
    def _kv_heads_divide_heads(self) -> ModelShape:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} must divide num_heads {self.num_heads}")
        return self

    @property
    def num_parameters(self) -> int:
        """Number of parameters, tied tensors counted once."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.ffn_size + 2 * self.hidden_size
        ends = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2) + self.hidden_size
        return self.num_layers * layer + ends
