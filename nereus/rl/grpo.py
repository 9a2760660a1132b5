"""GRPO: advantages within the group of a prompt, and a clipped objective with a KL term to the reference.

    rewards -> group_advantages -> advantages ┐
    log probabilities: new, old, reference    ┴-> token_loss -> sums over response tokens

Formulas of arXiv 2402.03300, sections 4.1.1 and 4.1.2. Sums are returned, not means: the caller divides by the global
number of response tokens, so that neither micro-batches nor DP ranks weigh the loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from nereus.errors import UserError

ADVANTAGE_EPS = 1e-4
"""Added to a group's standard deviation. Rewards are in [0, 1]: with less, a group that differs in one token of a thousand
would get advantages of size 1 from noise; a group of equal rewards gets 0."""


class TokenSums(NamedTuple):
    """Sums over the response tokens of a batch: scalars."""

    loss: torch.Tensor
    """Negative clipped objective plus kl_coef times the KL estimate; differentiable."""
    kl: torch.Tensor
    """KL estimate to the reference, detached."""
    clipped: torch.Tensor
    """Number of tokens whose ratio the clip cut off, detached."""


def group_advantages(rewards: torch.Tensor, samples_per_prompt: int, eps: float = ADVANTAGE_EPS) -> torch.Tensor:
    """(reward - mean) / (std + eps) within each group; std of the population.

    rewards: float [N], samples_per_prompt rows of one prompt after another. Returns [N]. Raises UserError if N isn't a
    multiple of samples_per_prompt.
    """
    if samples_per_prompt < 1 or len(rewards) % samples_per_prompt:
        raise UserError(f"samples_per_prompt: {len(rewards)} rewards are no whole groups of {samples_per_prompt}")
    groups = rewards.view(-1, samples_per_prompt)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / (groups.std(1, correction=0, keepdim=True) + eps)).view(-1)


def token_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_ratio: float,
    kl_coef: float,
) -> TokenSums:
    """The loss and its statistics, summed over the tokens where mask is true.

    logprobs, old_logprobs, ref_logprobs: [N, T] of the current, the sampling and the reference policy, aligned with the
    tokens; advantages: [N] or [N, T]; mask: bool [N, T]. Tokens may also come flat, then all five are [K].
    What lies outside the mask has no effect, NaN included.
    KL is Schulman's estimator k3 = r - log r - 1 with r = reference / current: unbiased and never negative.
    """
    ratio = torch.where(mask, logprobs - old_logprobs, 0.0).exp()
    gain = advantages.to(ratio.dtype)
    if gain.ndim < ratio.ndim:
        gain = gain[:, None]
    unclipped, clipped = ratio * gain, ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio) * gain
    to_reference = torch.where(mask, ref_logprobs - logprobs, 0.0)
    kl = to_reference.exp() - to_reference - 1.0  # 0 outside the mask
    objective = torch.where(mask, torch.minimum(unclipped, clipped), 0.0)
    loss = kl_coef * kl.sum() - objective.sum()
    return TokenSums(loss, kl.detach().sum(), ((clipped < unclipped) & mask).sum())
