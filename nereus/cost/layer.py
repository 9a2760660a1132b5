"""What one layer of a decoder computes and keeps, per token: products, attention, bytes, parameters.

    Decoder (its tensors) + experts per token, window (how it computes) = Architecture -> counts on one TP rank

FLOPs count two per multiply-add. Axes are shared out evenly over TP; fewer kv heads than TP ranks are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

from nereus.spec.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of a token's row: `inner` inputs, `outer` outputs, on one TP rank."""

    inner: float
    outer: float
    weights: float = 1.0
    """Copies of the matrix that a batch reads: more than one with experts."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder, and what of its computation leaves no trace in its tensors."""

    decoder: Decoder
    experts_per_token: int = 2
    """Experts that a token goes through, where there are experts."""
    window: int = 0
    """Tokens that a windowed layer attends to; 0: none has a window."""
    windowed: float = 0.0
    """Share of the layers that have the window."""

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate: all families but GPT-2."""
        return self.decoder.family != "gpt2"

    @property
    def mlp_matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def query_width(self) -> int:
        return self.decoder.num_heads * self.decoder.head_dim

    def kv_width(self, tp: int) -> float:
        """Elements of the keys of one token on one rank."""
        return max(1.0, self.decoder.num_kv_heads / tp) * self.decoder.head_dim

    @property
    def expert_share(self) -> float:
        """Share of the layers that have experts."""
        experts = self.decoder.experts
        return len(experts.layers) / self.decoder.num_layers if experts else 0.0

    @property
    def active_ffn(self) -> float:
        """Width of the MLP that a token goes through, mean over layers."""
        experts, share = self.decoder.experts, self.expert_share
        chosen = experts.ffn_size * min(self.experts_per_token, experts.count) if experts else 0
        return share * chosen + (1 - share) * self.decoder.ffn_size

    def read_ffn(self, tokens: float) -> float:
        """Width of the MLP whose weights a batch of this many tokens reads, mean over layers: distinct experts."""
        experts, share = self.decoder.experts, self.expert_share
        if experts is None:
            return float(self.decoder.ffn_size)
        missed = float((1 - min(self.experts_per_token, experts.count) / experts.count) ** tokens)
        return share * experts.ffn_size * experts.count * (1 - missed) + (1 - share) * self.decoder.ffn_size

    def products(self, tp: int) -> tuple[Product, ...]:
        """The products of one layer: q/k/v, out, gate and up, down."""
        hidden, queries, ffn = self.decoder.hidden_size, self.query_width / tp, self.active_ffn / tp
        return (
            Product(hidden, queries + 2 * self.kv_width(tp)),
            Product(queries, hidden),
            Product(hidden, (self.mlp_matrices - 1) * ffn),
            Product(ffn, hidden),
        )

    def attention_flops(self, tokens: float, tp: int) -> float:
        """Of the forward of one token in a causal sequence of this length: scores and values, half of the square."""
        seen = (1 - self.windowed) * tokens / 2 + self.windowed * min(tokens / 2, self.window or tokens / 2)
        return 4.0 * seen * self.query_width / tp

    def context(self, tokens: float) -> float:
        """Tokens whose keys and values the token after these reads, mean over layers."""
        return (1 - self.windowed) * tokens + self.windowed * min(tokens, self.window or tokens)

    def elementwise(self, tp: int, shards: int) -> float:
        """Elements that one token's forward reads and writes between products.

        Two norms read and write (4 h), two residuals read two and write one (6 h); rotary reads and writes queries and keys,
        the activation reads gate and up and writes what goes down.
        """
        outside = 10.0 * self.decoder.hidden_size / shards
        inside = 2 * (self.query_width / tp + self.kv_width(tp)) + self.mlp_matrices * self.active_ffn / tp
        return outside + inside

    def kept_outside(self, shards: int) -> float:
        """Elements that autograd keeps per token outside TP regions: the input and output of two norms."""
        return 4.0 * self.decoder.hidden_size / shards

    def kept_inside(self, tp: int) -> float:
        """Elements kept per token inside TP regions: q, k, v and what attention gives (flash attention keeps no square),
        rotated q and k; gate, up, the activation and its product."""
        attention = 3 * self.query_width / tp + 3 * self.kv_width(tp)
        return attention + (self.mlp_matrices + 1 if self.gated else 2) * self.active_ffn / tp

    def layer_parameters(self, tp: int) -> float:
        """Parameters of one layer on one rank, mean over layers; experts are shared out over the TP ranks."""
        experts, share, hidden = self.decoder.experts, self.expert_share, self.decoder.hidden_size
        attention = hidden * (2 * self.query_width / tp + 2 * self.kv_width(tp))
        width = share * experts.count * experts.ffn_size if experts else 0.0
        ffn = width + (1 - share) * self.decoder.ffn_size
        router = share * hidden * experts.count if experts else 0.0
        return attention + self.mlp_matrices * hidden * ffn / tp + router + len(self.decoder.norms) * hidden

    def end_parameters(self, tp: int) -> float:
        """Parameters of the embedding, or of the head, on one rank."""
        return self.decoder.hidden_size * self.decoder.vocab_size / tp

    @property
    def head_layers(self) -> float:
        """What the head costs, in layers."""
        layer = sum(product.inner * product.outer for product in self.products(1))
        return self.end_parameters(1) / layer
