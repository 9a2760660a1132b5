"""Training on one rank of an EMU, in two halves, and the forward-only pass that scores with a frozen model.

    accumulate: micro-batches through 1F1B -> flat gradient -> kv, tied and DP sums -> global norm     [collectives end]
    apply:      AdamW on local shards, counters forward                                             [local, idempotent]

The loss of every token is divided by the global number of response tokens, so DP degree, micro-batch and accumulation do
not change the update (paper, section 6.2). A death between the halves leaves every intact EMU at v, or lets it reach v + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nereus.errors import StaleUnitError
from nereus.layout.tensors import Kind
from nereus.rl.activations import ActivationMeter
from nereus.rl.adamw import adamw_
from nereus.rl.gradients import Gradients
from nereus.rl.grpo import token_loss
from nereus.rl.model import Decoder
from nereus.rl.pipeline import PipelineLink, one_forward_one_backward
from nereus.rl.rollouts import Rollout
from nereus.rl.view import UnitView
from nereus.spec.job import Grpo, Optimizer


@dataclass(frozen=True, slots=True)
class Accumulate:
    """A request: the gradient of these rows' share of the loss."""

    rollout: Rollout
    """The rows of this DP replica."""
    advantages: torch.Tensor
    """[n], in the dtype of the job."""
    ref_log_probs: torch.Tensor
    """[n, T]: log-probabilities of the frozen reference."""
    num_tokens: int
    """Response tokens of the whole minibatch, over all replicas."""
    micro_batch: int
    grpo: Grpo
    temperature: float
    recompute: bool = False
    """Whether the backward runs each layer again instead of keeping its activations."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `accumulate` found: this replica's share of the loss, and the global gradient norm."""

    loss: float
    kl: float
    clipped: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Apply:
    """A request: the update number `update` (1-based) with the gradients that `accumulate` left."""

    update: int
    model_version: int
    position: int
    grad_norm: float
    optimizer: Optimizer


@dataclass(frozen=True, slots=True)
class Score:
    """A request: log-probabilities of the responses under the unit's parameters."""

    rollout: Rollout
    micro_batch: int
    temperature: float


@dataclass(frozen=True, slots=True)
class _Micro:
    """One micro-batch: token ids [b, T], and for each predicted response token its row and column."""

    rows: slice
    tokens: torch.Tensor
    positions: torch.Tensor
    predicted: torch.Tensor
    """bool [b, T - 1]: whether token t + 1 belongs to the response."""

    @property
    def targets(self) -> torch.Tensor:
        return self.tokens[:, 1:][self.predicted]


def accumulate(view: UnitView, request: Accumulate) -> tuple[Gradients, Prepared]:
    """Forward and backward of all micro-batches, and every sum over ranks that the update needs."""
    leaves = {name: x.detach().requires_grad_() for name, x in view.parameters.items()}
    gradients = Gradients.zeros(leaves, view.memory)
    try:
        loss, kl, clipped = (float(x) for x in _run_pipeline(view, request, leaves, gradients))
        gradients.sum_over_ranks(view)
        return gradients, Prepared(loss, kl, clipped, gradients.global_norm(view))
    except BaseException:
        gradients.free()
        raise


def _run_pipeline(
    view: UnitView, request: Accumulate, leaves: dict[str, torch.Tensor], gradients: Gradients
) -> torch.Tensor:
    """All micro-batches through 1F1B; this rank's sums of loss, KL and clipped tokens."""
    model, link = view.decoder(leaves), _link(view)
    micros = _micro_batches(request.rollout, request.micro_batch, view.torch_device)
    saved: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}
    sums = torch.zeros(3, dtype=torch.float64, device=view.torch_device)
    order = one_forward_one_backward(len(micros), view.emu.layout.pp, view.coordinate.pp)
    with link.passing(), ActivationMeter(view.memory, [*leaves.values(), *gradients.all()]):
        for direction, index in order:
            micro = micros[index]
            if direction == "F":
                entered, left = _forward(model, link, micro, index, leaves_dtype(leaves), recompute=request.recompute)
                if model.is_last:
                    left = _loss(model, left, micro, request, sums)
                else:
                    link.send_activation(left, index)
                saved[index] = (entered, left)
            else:
                entered, left = saved.pop(index)
                left.backward(None if model.is_last else link.receive_gradient(left, index))  # type: ignore[no-untyped-call]
                if entered is not None:
                    assert entered.grad is not None
                    link.send_gradient(entered.grad, index)
                del entered, left
    return sums


def is_applied(view: UnitView, request: Apply) -> bool:
    """Whether the unit has this update already."""
    return int(view.counters["updates"]) >= request.update


def apply(view: UnitView, request: Apply, gradients: Gradients) -> None:
    """The AdamW update of the unit's local shards; a repeated call for the same update does nothing."""
    if is_applied(view, request):
        return
    counters = view.counters
    done = int(counters["updates"])
    if done != request.update - 1:
        raise StaleUnitError(f"unit {view.emu.unit} is at update {done} and cannot apply update {request.update}")
    options, parameters = request.optimizer, view.parameters
    exp_avg, exp_avg_sq = view.moments(Kind.EXP_AVG), view.moments(Kind.EXP_AVG_SQ)
    scale = min(1.0, options.max_grad_norm / (request.grad_norm + 1e-6))
    with torch.no_grad():
        for name, grad in gradients.by_name.items():
            adamw_(
                parameters[name],
                grad.mul_(scale),
                exp_avg[name],
                exp_avg_sq[name],
                update=request.update,
                learning_rate=options.learning_rate,
                betas=options.betas,
                eps=options.eps,
                weight_decay=options.weight_decay,
            )
    for name, value in (
        ("updates", request.update),
        ("model_version", request.model_version),
        ("policy_version", request.model_version),
        ("position", request.position),
    ):
        counters[name].fill_(value)


def score(view: UnitView, request: Score) -> torch.Tensor | None:
    """Log-probabilities [n, T] of the response tokens, 0 elsewhere; on the answering rank only."""
    model, link = view.decoder(), _link(view)
    dtype = leaves_dtype(view.parameters)
    out = torch.zeros(request.rollout.tokens.shape, dtype=dtype)
    with torch.inference_mode(), link.passing():
        for index, micro in enumerate(_micro_batches(request.rollout, request.micro_batch, view.torch_device)):
            _, left = _forward(model, link, micro, index, dtype)
            if not model.is_last:
                link.send_activation(left, index)
                continue
            with view.memory.holding("logits", _logits_bytes(model, micro, left), "buffers"):
                logits = model.logits(left[:, :-1][micro.predicted]) / request.temperature
                log_probs = model.log_probs(logits, micro.targets)
            rows = out[micro.rows, 1 : micro.tokens.shape[1]]
            rows[micro.predicted.cpu()] = log_probs.cpu()
    return out if view.answers else None


def leaves_dtype(parameters: dict[str, torch.Tensor]) -> torch.dtype:
    """The dtype in which the model computes."""
    return next(iter(parameters.values())).dtype


def _link(view: UnitView) -> PipelineLink:
    return PipelineLink(view.channels.pp, view.channels.groups.pp, view.coordinate.pp, view.memory)


def _micro_batches(rollout: Rollout, size: int, device: torch.device) -> list[_Micro]:
    """Consecutive rows, each micro-batch cut to its own longest row. Every rank of an EMU makes the same ones."""
    micros = []
    ends = rollout.prompt_length + rollout.response_length
    for start in range(0, len(rollout.tokens), size):
        rows = slice(start, start + size)
        longest = int(ends[rows].max())
        tokens = rollout.tokens[rows, :longest].to(device)
        at = torch.arange(1, longest, device=device)
        first, last = rollout.prompt_length[rows].to(device), ends[rows].to(device)
        predicted = (at >= first.unsqueeze(1)) & (at < last.unsqueeze(1))
        positions = torch.arange(longest, device=device).expand_as(tokens)
        micros.append(_Micro(rows, tokens, positions, predicted))
    return micros


def _forward(
    model: Decoder, link: PipelineLink, micro: _Micro, index: int, dtype: torch.dtype, *, recompute: bool = False
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """What entered this rank (None on the first) and the hidden states that leave it, both [b, T, hidden]."""
    if model.is_first:
        return None, model.run_layers(model.embed(micro.tokens), micro.positions, recompute=recompute)
    shape = (*micro.tokens.shape, model.shape.hidden_size)

    def empty() -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=micro.tokens.device)

    entered = link.receive_activation(empty, index)
    if torch.is_grad_enabled():
        entered.requires_grad_()
    return entered, model.run_layers(entered, micro.positions, recompute=recompute)


def _loss(model: Decoder, hidden: torch.Tensor, micro: _Micro, request: Accumulate, sums: torch.Tensor) -> torch.Tensor:
    """This micro-batch's share of the loss; adds (loss, kl, clipped tokens) to `sums`."""
    logits = model.logits(hidden[:, :-1][micro.predicted]) / request.temperature
    log_probs = model.log_probs(logits, micro.targets)
    device, dtype = log_probs.device, log_probs.dtype
    width = micro.tokens.shape[1]

    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x[micro.rows, 1:width].to(device, dtype)[micro.predicted]

    advantages = request.advantages[micro.rows].to(device, dtype).unsqueeze(1).expand_as(micro.predicted)
    total = token_loss(
        log_probs,
        chosen(request.rollout.old_logprobs),
        chosen(request.ref_log_probs),
        advantages[micro.predicted],
        torch.ones_like(log_probs, dtype=torch.bool),
        request.grpo.clip_ratio,
        request.grpo.kl_coef,
    )
    loss = total.loss / request.num_tokens
    sums += torch.stack([loss.detach().double(), total.kl.double(), total.clipped.double()])
    return loss


def _logits_bytes(model: Decoder, micro: _Micro, like: torch.Tensor) -> int:
    return int(micro.predicted.sum()) * len(model.vocab) * like.element_size()
