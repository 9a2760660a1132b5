"""What one layer of a decoder computes and keeps, per token: products, attention, bytes, parameters.

    Decoder (nereus/spec/decoder.py) -> Architecture -> counts on one TP rank, means over the layers

FLOPs count two per multiply-add. Axes are shared out evenly over TP; fewer kv heads than TP ranks are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nereus.spec.attention import kv_elements
from nereus.spec.decoder import Decoder
from nereus.spec.weights import Part, layer_weights, rank_parameters


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of a token's row: `inner` inputs, `outer` outputs, on one TP rank."""

    inner: float
    outer: float
    weights: float = 1.0
    """Copies of the matrix that a batch reads: more than one with experts."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder as work: what a token goes through."""

    decoder: Decoder
    values: int = 0
    """Outputs of a small head in place of the language-model head, such as 1 of a critic or a reward model; 0: logits."""

    def head_outputs(self, tp: int) -> float:
        """Outputs of the head on one TP rank: its part of the vocabulary, or all of a small head, which is not cut."""
        return self.values or self.decoder.vocab_size / tp

    @property
    def mlp_matrices(self) -> int:
        return 3 if self.decoder.gated else 2

    @property
    def query_width(self) -> int:
        return self.decoder.num_heads * self.decoder.head_dim

    @property
    def value_width(self) -> int:
        """Elements of what attention gives."""
        return self.decoder.num_heads * self.decoder.value_dim

    def kv_width(self, tp: int) -> float:
        """Elements of the keys of one token on one rank, or of its values: the mean of both."""
        if self.decoder.latent is not None:
            return (self.query_width + self.value_width) / 2 / tp
        return max(1.0, self.decoder.num_kv_heads / tp) * self.decoder.head_dim

    def cached_width(self, tp: int) -> float:
        """Elements that the KV cache keeps of one token in one layer on one rank."""
        return float(kv_elements(self.decoder, tp)) if self.decoder.latent is not None else 2 * self.kv_width(tp)

    @property
    def windowed(self) -> float:
        """Share of the layers whose context is bounded."""
        window = self.decoder.window
        return len(window.layers) / self.decoder.num_layers if window else 0.0

    @property
    def expert_share(self) -> float:
        """Share of the layers that have experts."""
        experts = self.decoder.experts
        return len(experts.layers) / self.decoder.num_layers if experts else 0.0

    @property
    def active_ffn(self) -> float:
        """Width of the MLP that a token goes through, mean over layers."""
        experts, share = self.decoder.experts, self.expert_share
        chosen = experts.ffn_size * experts.active + experts.shared_ffn_size if experts else 0
        return share * chosen + (1 - share) * self.decoder.ffn_size

    def read_ffn(self, tokens: float, ep: int = 1) -> float:
        """Width of the MLP whose weights a batch of this many tokens reads, mean over layers: distinct experts.

        Under expert parallelism a rank has one in `ep` of them, and the tokens of all EP ranks come to it.
        """
        experts, share = self.decoder.experts, self.expert_share
        if experts is None:
            return float(self.decoder.ffn_size)
        missed = float((1 - experts.active / experts.count) ** (tokens * ep))
        read = experts.ffn_size * experts.count / ep * (1 - missed) + experts.shared_ffn_size
        return share * read + (1 - share) * self.decoder.ffn_size

    def products(self, tp: int) -> tuple[Product, ...]:
        """The products of one layer: q/k/v (in steps where they are compressed), out, gate and up, down."""
        hidden, ffn = self.decoder.hidden_size, self.active_ffn / tp
        return (
            *self._query_key_value(tp),
            Product(self.value_width / tp, hidden),
            Product(hidden, (self.mlp_matrices - 1) * ffn),
            Product(ffn, hidden),
        )

    def _query_key_value(self, tp: int) -> tuple[Product, ...]:
        hidden, queries, latent = self.decoder.hidden_size, self.query_width / tp, self.decoder.latent
        if latent is None:
            return (Product(hidden, queries + 2 * self.kv_width(tp)),)
        # Of a key only what carries no position comes out of the compressed vector (MLA).
        expanded = self.decoder.num_heads * (self.decoder.head_dim - latent.rope_dim + latent.value_dim) / tp
        compressed = (Product(hidden, latent.q_rank), Product(latent.q_rank, queries))
        asked = compressed if latent.q_rank else (Product(hidden, queries),)
        return (*asked, Product(hidden, latent.kv_rank + latent.rope_dim), Product(latent.kv_rank, expanded))

    def attention_flops(self, tokens: float, tp: int, *, square: bool = False) -> float:
        """Of the forward of one token in a causal sequence of this length: scores and values, half of the square or all."""
        return 2.0 * self._seen(tokens if square else tokens / 2) * (self.query_width + self.value_width) / tp

    def context(self, tokens: float) -> float:
        """Tokens whose keys and values the token after these reads, mean over layers."""
        return self._seen(tokens)

    def _seen(self, tokens: float) -> float:
        window = self.decoder.window
        return (1 - self.windowed) * tokens + self.windowed * min(tokens, window.size) if window else tokens

    def elementwise(self, tp: int, shards: int) -> float:
        """Elements that one token's forward reads and writes between products.

        Two norms read and write (4 h), two residuals read two and write one (6 h); rotary reads and writes queries and keys,
        the activation reads gate and up and writes what goes down.
        """
        outside = 10.0 * self.decoder.hidden_size / shards
        inside = 2 * (self.query_width / tp + self.kv_width(tp)) + self.mlp_matrices * self.active_ffn / tp
        return outside + inside

    def scores(self, tokens: float, tp: int) -> float:
        """Scores of one token in a sequence of this length, its row of the whole square: where they go through memory."""
        return self._seen(tokens) * self.decoder.num_heads / tp

    def kept_outside(self, shards: int, *, gathered: bool = False) -> float:
        """Elements that autograd keeps per token outside TP regions: the input and output of two norms.

        `gathered`: the outputs are kept as the products after them need them, whole.
        """
        return self.decoder.hidden_size * (2.0 / shards + (2.0 if gathered else 2.0 / shards))

    def kept_inside(self, tp: int) -> float:
        """Elements kept per token inside TP regions: q, k, v and what attention gives (flash attention keeps no square),
        rotated q and k; gate, up, the activation and its product."""
        attention = 3 * self.query_width / tp + 3 * self.kv_width(tp)
        return attention + (self.mlp_matrices + 1 if self.decoder.gated else 2) * self.active_ffn / tp

    def layer_parameters(self, tp: int, ep: int = 1) -> float:
        """Parameters of one layer on one rank, mean over layers; TP ranks have slices of experts, EP ranks some whole."""
        return _layer_parameters(self.decoder, tp, ep)

    def expert_parameters(self, tp: int, ep: int = 1) -> float:
        """Those of them that are of routed experts."""
        return _expert_parameters(self.decoder, tp, ep)

    @property
    def routed_width(self) -> float:
        """Elements that one token sends to its experts, mean over layers; they send as many back."""
        experts = self.decoder.experts
        return self.expert_share * experts.active * self.decoder.hidden_size if experts else 0.0

    def end_parameters(self, tp: int) -> float:
        """Parameters of the embedding, or of a language-model head, on one rank."""
        return self.decoder.hidden_size * self.decoder.vocab_size / tp

    def head_parameters(self, tp: int) -> float:
        """Parameters of the head on one rank, a tied one counted too."""
        return self.decoder.hidden_size * self.head_outputs(tp)

    @property
    def head_layers(self) -> float:
        """What the head costs, in layers."""
        layer = sum(product.inner * product.outer for product in self.products(1))
        return self.head_parameters(1) / layer


@lru_cache(maxsize=1024)
def _layer_parameters(decoder: Decoder, tp: int, ep: int) -> float:
    return rank_parameters(decoder, range(decoder.num_layers), first=False, last=False, tp=tp, ep=ep) / decoder.num_layers


@lru_cache(maxsize=1024)
def _expert_parameters(decoder: Decoder, tp: int, ep: int) -> float:
    layers = (layer_weights(decoder, layer) for layer in range(decoder.num_layers))
    return sum(w.share(tp, ep) for weights in layers for w in weights if w.part is Part.EXPERTS) / decoder.num_layers
