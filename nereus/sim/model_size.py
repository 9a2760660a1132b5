"""A model by the few numbers that the world's response surfaces depend on.

Decoder -> ModelSize: products, parameters, keys and values

Not the counts of the cost model: layers are all alike, TP cuts everything evenly, and critics and reward models have a
head with one output.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nereus.spec.attention import attention_products, kv_bytes_per_token
from nereus.spec.decoder import Decoder
from nereus.spec.weights import active_parameters, matrix_products, num_parameters

HALF = 2
"""Bytes of one element in half precision, in which every model runs."""

_LENGTH = 4096
"""Tokens at which the attention's products are counted; they grow with the square of the length, windows aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What of a model decides its time and memory."""

    layers: int
    hidden: int
    embedding: int
    """Parameters of the embedding."""
    head: int
    """Parameters of the head, tied or not."""
    outputs: int
    """Of the head: the vocabulary, or 1."""
    tied: bool
    layer_parameters: float
    active: int
    """Parameters that one token passes through."""
    layer_products: float
    """Multiply-adds of one token with the matrices of one layer, on average."""
    attention: float
    """Multiply-adds of the attention over a sequence of n tokens, as a multiple of n squared."""
    kv_bytes: int
    """Of one token in the KV cache of all layers."""
    kv_heads: int
    """Ranks of a TP group that the KV cache can be shared out to; further ones repeat it."""

    @property
    def parameters(self) -> float:
        """All of them, a tied head once."""
        return self.layers * self.layer_parameters + self.embedding + (0 if self.tied else self.head)

    def forward_products(self, tokens: float) -> float:
        """Multiply-adds of one sequence through the whole model."""
        return tokens * (self.layers * self.layer_products + self.head) + self.attention * tokens**2

    def layers_of(self, pp: int, rank: int) -> int:
        """Layers of a pipeline rank: the first ones have one more where they do not divide."""
        return self.layers // pp + (rank < self.layers % pp)

    def busiest_share(self, pp: int) -> float:
        """Work of the busiest pipeline rank, as a multiple of the mean: layers are whole, and the last rank has the head."""
        first = self.layers_of(pp, 0) * self.layer_products
        last = self.layers_of(pp, pp - 1) * self.layer_products + self.head
        return pp * max(first, last) / (self.layers * self.layer_products + self.head)

    def shard(self, tp: int, pp: int, rank: int) -> float:
        """Parameters of a device of this pipeline rank."""
        found = self.layers_of(pp, rank) * self.layer_parameters
        found += self.embedding if rank == 0 else 0
        found += self.head if rank == pp - 1 and not (self.tied and pp == 1) else 0
        return found / tp

    def kv_share(self, tp: int) -> float:
        """Share of a layer's keys and values that a TP rank holds."""
        return 1 / min(tp, self.kv_heads)


@lru_cache(maxsize=64)
def model_size(decoder: Decoder, values: bool = False) -> ModelSize:
    """The numbers of a decoder; `values`: with one output per token in place of its vocabulary."""
    vocabulary = decoder.hidden_size * decoder.vocab_size
    tied = decoder.tied and not values
    layers = num_parameters(decoder) - vocabulary * (1 if decoder.tied else 2)
    head = decoder.hidden_size if values else vocabulary
    return ModelSize(
        layers=decoder.num_layers,
        hidden=decoder.hidden_size,
        embedding=vocabulary,
        head=head,
        outputs=1 if values else decoder.vocab_size,
        tied=tied,
        layer_parameters=layers / decoder.num_layers,
        active=active_parameters(decoder) - (0 if decoder.tied else vocabulary - head),
        layer_products=(matrix_products(decoder) - vocabulary) / decoder.num_layers,
        attention=attention_products(decoder, range(decoder.num_layers), _LENGTH) / _LENGTH**2,
        kv_bytes=kv_bytes_per_token(decoder, HALF),
        kv_heads=1 if decoder.latent is not None else decoder.num_kv_heads,
    )
