"""A Llama-shaped decoder over the shards of one rank: plain tensors and explicit collectives.

    embed (first pipeline rank) -> layers of this rank -> head (last pipeline rank)

Rotary positions are in the half-split order of HF. Vocabulary, heads and MLP are cut over the TP group; the residual stream
is whole on every rank. The same code runs training, scoring and decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F

from nereus.layout.dense import EMBED, HEAD, NORM, layer_name
from nereus.layout.layout import Coordinate, Layout
from nereus.layout.tensors import Segment, pipeline_layers
from nereus.rl.channels import Channels, copied, summed
from nereus.rl.kv_cache import KvCache
from nereus.rl.recompute import Angles, recomputed
from nereus.spec.model import ModelShape


class Decoder:
    """The part of the model that one rank of an EMU computes."""

    def __init__(
        self, shape: ModelShape, layout: Layout, rank: int, tensors: Mapping[str, torch.Tensor], channels: Channels
    ) -> None:
        at: Coordinate = layout.coordinate(rank)
        self.shape, self._tensors, self._tp = shape, tensors, channels.tp
        self.layers = pipeline_layers(shape.num_layers, layout.pp, at.pp)
        self.is_first, self.is_last = at.pp == 0, at.pp == layout.pp - 1
        self.vocab = range(*Segment(shape.vocab_size).span(layout.tp, at.tp))
        """The token ids whose embeddings and logits this rank holds."""

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embeddings [.., hidden] of token ids [..]."""
        table = self._tensors[EMBED]
        if self._tp.is_alone:
            return F.embedding(tokens, table)
        local = tokens - self.vocab.start
        mine = (local >= 0) & (local < len(self.vocab))
        rows = F.embedding(local.clamp(0, len(self.vocab) - 1), table)
        return summed(rows * mine.unsqueeze(-1).to(rows.dtype), self._tp)

    def run_layers(
        self, x: torch.Tensor, positions: torch.Tensor, cache: KvCache | None = None, *, recompute: bool = False
    ) -> torch.Tensor:
        """The layers of this rank on x [batch, length, hidden] at positions [batch, length].

        Without a cache attention is causal over the rows themselves (right-padded rows need no mask). With one, keys and
        values are appended at `positions` and attention reads everything up to them. `recompute`: the backward runs each
        layer again instead of keeping its activations.
        """
        rotary = self._rotary(positions, x.dtype)
        for layer in self.layers:
            run = partial(self._layer, layer, positions, cache)
            x = recomputed(run, x, rotary) if recompute else run(x, rotary)
        return x

    def _layer(
        self, layer: int, positions: torch.Tensor, cache: KvCache | None, x: torch.Tensor, rotary: Angles
    ) -> torch.Tensor:
        x = x + self._attention(layer, self._norm(x, layer_name(layer, "input_layernorm")), rotary, positions, cache)
        return x + self._mlp(layer, self._norm(x, layer_name(layer, "post_attention_layernorm")))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [.., len(vocab)] of this rank's tokens from the last hidden states [.., hidden]."""
        head = self._tensors[EMBED if self.shape.tie_embeddings else HEAD]
        return F.linear(copied(self._norm(x, NORM), self._tp), head)

    def log_probs(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [n] of targets [n] under a softmax over the whole vocabulary, from local logits [n, vocab]."""
        top = self._tp.reduce_(logits.detach().amax(-1), "max")
        total = summed((logits - top.unsqueeze(-1)).exp().sum(-1), self._tp)
        local = targets - self.vocab.start
        mine = (local >= 0) & (local < len(self.vocab))
        chosen = logits.gather(-1, local.clamp(0, len(self.vocab) - 1).unsqueeze(-1)).squeeze(-1)
        return summed(chosen * mine.to(chosen.dtype), self._tp) - top - total.log()

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self._tensors[name], self.shape.norm_eps)

    def _weight(self, layer: int, part: str) -> torch.Tensor:
        return self._tensors[layer_name(layer, part)]

    def _attention(
        self,
        layer: int,
        x: torch.Tensor,
        rotary: Angles,
        positions: torch.Tensor,
        cache: KvCache | None,
    ) -> torch.Tensor:
        x = copied(x, self._tp)
        q, k, v = (self._heads(F.linear(x, self._weight(layer, f"self_attn.{p}_proj"))) for p in "qkv")
        q, k = _rotate(q, *rotary), _rotate(k, *rotary)
        mask = None
        if cache is not None:
            k, v, mask = cache.append(layer, k, v, positions)
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        out = out.transpose(1, 2).reshape(*x.shape[:2], -1)
        return summed(F.linear(out, self._weight(layer, "self_attn.o_proj")), self._tp)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, heads * dim] -> [batch, heads, length, dim]."""
        return x.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)

    def _mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        x = copied(x, self._tp)
        gated = F.silu(F.linear(x, self._weight(layer, "mlp.gate_proj"))) * F.linear(x, self._weight(layer, "mlp.up_proj"))
        return summed(F.linear(gated, self._weight(layer, "mlp.down_proj")), self._tp)

    def _rotary(self, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
        """cos and sin, [batch, 1, length, head_dim / 2]."""
        dim = self.shape.head_dim
        exponent = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim
        angle = positions.to(torch.float64).unsqueeze(-1) * self.shape.rope_theta**-exponent
        return angle.cos().to(dtype).unsqueeze(1), angle.sin().to(dtype).unsqueeze(1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + dim/2) of x [batch, heads, length, dim]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
