"""Generation on one rank of an EMU: prefill, then one token at a time through a KV cache.

    waves of rows -> prefill -> { local logits -> one gather of (best, logsumexp) per TP group -> token } -> responses

Sampling is argmax(logits / temperature + Gumbel noise); the noise belongs to (sample, position, token), so the responses do
not depend on which rank holds which rows or which part of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nereus.layout.dense import layer_name
from nereus.rl.kv_cache import KvCache, kv_cache
from nereus.rl.model import Decoder
from nereus.rl.noise import gumbel
from nereus.rl.view import UnitView


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are drawn."""

    cap: int
    """Longest response, in tokens."""
    temperature: float
    eos: int | None
    """The token that ends a response; None when only the cap does."""
    seed: int


@dataclass(frozen=True, slots=True)
class Generate:
    """A request: responses for these rows."""

    sample_ids: torch.Tensor
    """int64 [n]: the logical coordinate of each row's randomness."""
    prompts: tuple[tuple[int, ...], ...]
    sampling: Sampling
    wave: int
    """Rows that decode together; the KV cache is reserved for one wave."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Responses in the order of the request's rows: tokens and log-probabilities [n, longest response]."""

    tokens: torch.Tensor
    lengths: torch.Tensor
    log_probs: torch.Tensor


def generate(view: UnitView, request: Generate) -> Generated | None:
    """Responses for the request's rows; on the first TP rank only."""
    model = view.decoder()
    with torch.inference_mode():
        waves = [
            _wave(view, model, request, slice(start, start + request.wave))
            for start in range(0, len(request.prompts), request.wave)
        ]
    if view.coordinate.tp > 0:
        return None
    longest = max(tokens.shape[1] for tokens, _, _ in waves)
    grown = [[_widen(x, longest) for x in (tokens, log_probs)] for tokens, _, log_probs in waves]
    return Generated(
        tokens=torch.cat([tokens for tokens, _ in grown]),
        lengths=torch.cat([lengths for _, lengths, _ in waves]),
        log_probs=torch.cat([log_probs for _, log_probs in grown]),
    )


def _wave(view: UnitView, model: Decoder, request: Generate, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """tokens [b, n], lengths [b] and log-probabilities [b, n] of one wave."""
    prompts, sampling = request.prompts[rows], request.sampling
    samples = request.sample_ids[rows].to(view.torch_device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=view.torch_device)
    padded = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.int64, device=view.torch_device)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = torch.tensor(prompt)
    keys = view.parameters[layer_name(model.layers.start, "self_attn.k_proj")]
    capacity = padded.shape[1] + sampling.cap
    with kv_cache(view.memory, model.shape, model.layers, keys, len(prompts), capacity) as cache:
        last = _prefill(model, padded, lengths, cache)
        return _decode(view, model, last, lengths, samples, sampling, cache)


def _prefill(model: Decoder, padded: torch.Tensor, lengths: torch.Tensor, cache: KvCache) -> torch.Tensor:
    """Fill the cache with right-padded prompts; the last hidden state of each row, [b, hidden].

    What padding writes lies beyond a row's own position, so it is overwritten before it can be read.
    """
    positions = torch.arange(padded.shape[1], device=padded.device).expand_as(padded)
    hidden = model.run_layers(model.embed(padded), positions, cache)
    return hidden[torch.arange(len(lengths), device=padded.device), lengths - 1]


def _decode(
    view: UnitView,
    model: Decoder,
    hidden: torch.Tensor,
    prompt_lengths: torch.Tensor,
    samples: torch.Tensor,
    sampling: Sampling,
    cache: KvCache,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, log_probs = [], []
    lengths = torch.zeros_like(prompt_lengths)
    alive = torch.ones_like(prompt_lengths, dtype=torch.bool)
    for position in range(sampling.cap):
        logits = model.logits(hidden) / sampling.temperature
        token, log_prob = _sample(view, model, logits, samples, position, sampling.seed)
        tokens.append(torch.where(alive, token, 0))
        log_probs.append(torch.where(alive, log_prob, 0.0))
        lengths += alive
        if sampling.eos is not None:
            alive = alive & (token != sampling.eos)
            if not alive.any():
                break
        if position + 1 < sampling.cap:
            at = (prompt_lengths + position).unsqueeze(1)
            hidden = model.run_layers(model.embed(token.unsqueeze(1)), at, cache)[:, 0]
    return torch.stack(tokens, 1), lengths, torch.stack(log_probs, 1)


def _sample(
    view: UnitView, model: Decoder, logits: torch.Tensor, samples: torch.Tensor, position: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [b] and their log-probabilities [b] from local logits [b, len(vocab)], with one gather over the TP group."""
    noisy = logits + gumbel(seed, samples, position, model.vocab).to(logits.dtype)
    best, index = noisy.max(-1)
    top = logits.amax(-1)
    mass = (logits - top.unsqueeze(-1)).exp().sum(-1)
    chosen = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    token = (index + model.vocab.start).to(torch.float64)
    local = torch.stack([best.double(), token, chosen.double(), top.double(), mass.double()], -1)
    ranks = torch.stack(view.channels.tp.gather(local))  # [tp, b, 5]
    winner = ranks[..., 0].argmax(0)
    rows = torch.arange(len(winner), device=winner.device)
    highest = ranks[..., 3].amax(0)
    log_total = highest + ((ranks[..., 3] - highest).exp() * ranks[..., 4]).sum(0).log()
    return ranks[winner, rows, 1].to(torch.int64), (ranks[winner, rows, 2] - log_total).to(logits.dtype)


def _widen(x: torch.Tensor, columns: int) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, columns - x.shape[1]))
