"""A single-process trainer in plain torch: what a distributed run must come to.

    recorded rollouts -> { one row at a time: decoder -> GRPO loss } -> autograd -> clip_grad_norm_ -> torch.optim.AdamW

It is written from the public definitions (Llama as in HF transformers; GRPO of arXiv 2402.03300 with the k3 estimate of the
KL; decoupled AdamW), not from the code. Rows are never padded or put together, nothing is cut, and everything is float64.
Only the first weights, the reader of recorded rollouts and the job's declarations are the project's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nereus.layout.box import Box
from nereus.layout.dense import dense_parameters
from nereus.rl.rollouts import RecordedRollouts
from nereus.rl.weights import RandomWeights
from nereus.spec.job import Grpo, Job
from nereus.spec.model import ModelShape

Parameters = dict[str, torch.Tensor]


@dataclass
class Trained:
    """What the reference came to; the lists have one entry per update."""

    losses: list[float] = field(default_factory=list)
    kl_sums: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    clipped_tokens: int = 0
    num_tokens: list[int] = field(default_factory=list)
    parameters: Parameters = field(default_factory=dict)
    """The final parameters by HF name."""

    def step_losses(self, updates_per_step: int) -> list[float]:
        """The mean loss of each step's updates."""
        return [sum(group) / updates_per_step for group in _groups(self.losses, updates_per_step)]

    def step_kls(self, updates_per_step: int) -> list[float]:
        """The mean KL per response token of each step."""
        sums, tokens = _groups(self.kl_sums, updates_per_step), _groups(self.num_tokens, updates_per_step)
        return [sum(kl) / sum(count) for kl, count in zip(sums, tokens, strict=True)]

    def step_grad_norms(self, updates_per_step: int) -> list[float]:
        """The gradient norm of each step's last update, before clipping."""
        return self.grad_norms[updates_per_step - 1 :: updates_per_step]


def train(job: Job, rollouts: Path) -> Trained:
    """Train `job` on the rollouts recorded in a folder, in float64."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small only lose to the waits of a second thread: 1.4 s become 54
    try:
        return _train(job, rollouts)
    finally:
        torch.set_num_threads(threads)


def _train(job: Job, rollouts: Path) -> Trained:
    parameters = first_parameters(job)
    frozen = {name: value.detach().clone() for name, value in parameters.items()}
    options, found = job.optimizer, Trained(parameters=parameters)
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        weight_decay=options.weight_decay,
        foreach=False,
    )
    record, samples = RecordedRollouts(rollouts), job.workload.samples_per_prompt
    for step in range(1, job.steps + 1):
        rollout = record.step(step)
        rows = [
            (
                rollout.tokens[i, : int(start + length)],
                int(start),
                rollout.old_logprobs[i, int(start) : int(start + length)].double(),
            )
            for i, (start, length) in enumerate(zip(rollout.prompt_length, rollout.response_length, strict=True))
        ]
        advantages = _advantages(rollout.rewards.double(), samples, job.grpo.advantage_eps)
        each = len(rows) // job.grpo.updates_per_step
        for first in range(0, len(rows), each):
            batch = range(first, first + each)
            tokens = sum(len(rows[i][2]) for i in batch)
            optimizer.zero_grad()
            loss = torch.zeros((), dtype=torch.float64)
            kl = 0.0
            for i in batch:
                part, row_kl, clipped = _row(job, parameters, frozen, rows[i], advantages[i])
                loss = loss + part / tokens
                kl += row_kl
                found.clipped_tokens += clipped
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters.values(), options.max_grad_norm)
            optimizer.step()
            found.losses.append(float(loss.detach()))
            found.kl_sums.append(kl)
            found.grad_norms.append(float(norm))
            found.num_tokens.append(tokens)
    found.parameters = {name: value.detach() for name, value in parameters.items()}
    return found


def first_parameters(job: Job) -> Parameters:
    """The values that the job's workers start from, whole, as float64 leaves; rounded to the job's dtype first."""
    source = RandomWeights(job.seed, job.model)
    return {
        tensor.name: source.read(tensor, Box((0,) * len(tensor.shape), tensor.shape)).double().requires_grad_()
        for tensor in dense_parameters(job.model, job.dtype)
    }


def log_probs(
    shape: ModelShape, parameters: Parameters, tokens: torch.Tensor, start: int, temperature: float
) -> torch.Tensor:
    """Log-probabilities of tokens[start:] given what is before each, for one row of tokens [T]."""
    hidden = parameters["model.embed_tokens.weight"][tokens]
    cos, sin = _rotary(shape, len(tokens))
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}."
        normed = _rms_norm(hidden, parameters[at + "input_layernorm.weight"], shape.norm_eps)
        hidden = hidden + _attention(shape, parameters, at + "self_attn.", normed, cos, sin)
        normed = _rms_norm(hidden, parameters[at + "post_attention_layernorm.weight"], shape.norm_eps)
        gate = normed @ parameters[at + "mlp.gate_proj.weight"].T
        up = normed @ parameters[at + "mlp.up_proj.weight"].T
        hidden = hidden + (gate * torch.sigmoid(gate) * up) @ parameters[at + "mlp.down_proj.weight"].T
    head = parameters["model.embed_tokens.weight" if shape.tie_embeddings else "lm_head.weight"]
    logits = _rms_norm(hidden, parameters["model.norm.weight"], shape.norm_eps) @ head.T / temperature
    predicted = torch.log_softmax(logits[start - 1 : -1], dim=-1)
    return predicted[torch.arange(len(tokens) - start), tokens[start:]]


def _row(
    job: Job,
    parameters: Parameters,
    frozen: Parameters,
    row: tuple[torch.Tensor, int, torch.Tensor],
    advantage: torch.Tensor,
) -> tuple[torch.Tensor, float, int]:
    """The loss summed over one row's response tokens, its KL sum, and how many tokens the clip cut off."""
    tokens, start, old = row
    temperature, grpo = job.workload.temperature, job.grpo
    new = log_probs(job.model, parameters, tokens, start, temperature)
    with torch.no_grad():
        reference = log_probs(job.model, frozen, tokens, start, temperature)
    objective, clipped = _clipped_objective(new, old, advantage, grpo)
    kl = torch.exp(reference - new) - (reference - new) - 1
    return (grpo.kl_coef * kl - objective).sum(), float(kl.detach().sum()), clipped


def _clipped_objective(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, grpo: Grpo
) -> tuple[torch.Tensor, int]:
    ratio = torch.exp(new - old)
    bounded = torch.clamp(ratio, 1 - grpo.clip_ratio, 1 + grpo.clip_ratio)
    objective = torch.minimum(ratio * advantage, bounded * advantage)
    return objective, int((bounded * advantage < ratio * advantage).sum())


def _advantages(rewards: torch.Tensor, samples: int, eps: float) -> torch.Tensor:
    groups = rewards.reshape(-1, samples)
    deviation = ((groups - groups.mean(1, keepdim=True)) ** 2).mean(1, keepdim=True).sqrt()
    return ((groups - groups.mean(1, keepdim=True)) / (deviation + eps)).reshape(-1)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def _rotary(shape: ModelShape, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [length, head_dim], each frequency in both halves, as HF lays them out."""
    half = shape.head_dim // 2
    frequency = torch.tensor([shape.rope_theta ** (-2 * i / shape.head_dim) for i in range(half)], dtype=torch.float64)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def _attention(
    shape: ModelShape, parameters: Parameters, at: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Causal attention; each key-value head k serves the `each` query heads from k * each on."""
    dim, length, each = shape.head_dim, len(x), shape.num_heads // shape.num_kv_heads
    q = _rotated((x @ parameters[f"{at}q_proj.weight"].T).reshape(length, -1, dim).transpose(0, 1), cos, sin)
    k = _rotated((x @ parameters[f"{at}k_proj.weight"].T).reshape(length, -1, dim).transpose(0, 1), cos, sin)
    v = (x @ parameters[f"{at}v_proj.weight"].T).reshape(length, -1, dim).transpose(0, 1)
    scores = torch.einsum("kgtd,ksd->kgts", q.reshape(-1, each, length, dim), k) / dim**0.5
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    out = torch.einsum("kgts,ksd->tkgd", torch.softmax(scores.masked_fill(later, float("-inf")), dim=-1), v)
    return out.reshape(length, -1) @ parameters[f"{at}o_proj.weight"].T


def _groups(values: list[Any], size: int) -> list[list[Any]]:
    return [values[i : i + size] for i in range(0, len(values), size)]
