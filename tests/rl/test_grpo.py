"""GRPO by hand: advantages and the loss of single tokens, worked out from the formulas of arXiv 2402.03300."""

from __future__ import annotations

import math

import pytest
import torch

from nereus.errors import UserError
from nereus.rl.grpo import TokenSums, group_advantages, token_loss


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def loss_of(
    ratio: float, advantage: float, reference: float = 1.0, clip: float = 0.2, kl_coef: float = 0.0
) -> tuple[TokenSums, torch.Tensor]:
    """The loss of one token of probability 0.5 (old), 0.5 * ratio (new) and new * reference, and d loss / d logprob."""
    new = row(math.log(0.5 * ratio)).requires_grad_()
    ref = row(math.log(0.5 * ratio * reference))
    sums = token_loss(new, row(math.log(0.5)), ref, torch.tensor([advantage]), torch.tensor([[True]]), clip, kl_coef)
    (gradient,) = torch.autograd.grad(sums.loss, new)
    return sums, gradient


def test_advantages_are_standard_scores_within_each_group() -> None:
    # Group 1: mean 0.5, population std 0.5. Group 2: mean 2, std sqrt(2).
    rewards = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 2.0, 2.0, 4.0], dtype=torch.float64)
    expected = [-1.0, 1.0, 1.0, -1.0, -(2**0.5), 0.0, 0.0, 2**0.5]
    assert group_advantages(rewards, 4, eps=0.0).tolist() == pytest.approx(expected)


def test_eps_is_added_to_the_standard_deviation() -> None:
    rewards = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert group_advantages(rewards, 2, eps=0.5).tolist() == pytest.approx([-0.5, 0.5])


def test_a_group_of_equal_rewards_has_no_advantage() -> None:
    assert group_advantages(torch.full((4,), 0.25), 4).tolist() == [0.0] * 4


def test_rewards_that_are_no_whole_groups_are_refused() -> None:
    with pytest.raises(UserError, match="samples_per_prompt: 6 rewards are no whole groups of 4"):
        group_advantages(torch.zeros(6), 4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0),
        (1.1, 2.0, -2.2, 0),
        (1.5, 2.0, -2.4, 1),  # min(3, 1.2 * 2)
        (0.5, 2.0, -1.0, 0),  # min(1, 0.8 * 2)
        (0.5, -1.0, 0.8, 1),  # min(-0.5, -0.8)
        (1.5, -1.0, 1.5, 0),  # min(-1.5, -1.2)
    ],
)
def test_the_objective_is_the_smaller_of_clipped_and_unclipped(
    ratio: float, advantage: float, loss: float, clipped: int
) -> None:
    sums, gradient = loss_of(ratio, advantage)
    assert sums.loss.item() == pytest.approx(loss)
    assert sums.clipped.item() == clipped
    assert gradient.item() == pytest.approx(0.0 if clipped else -ratio * advantage)


def test_the_kl_term_is_schulmans_k3() -> None:
    # r = reference / new = 2: k3 = 2 - ln 2 - 1, and d k3 / d logprob = 1 - r.
    sums, gradient = loss_of(1.0, 0.0, reference=2.0, kl_coef=0.1)
    assert sums.kl.item() == pytest.approx(1 - math.log(2))
    assert sums.loss.item() == pytest.approx(0.1 * (1 - math.log(2)))
    assert gradient.item() == pytest.approx(0.1 * (1 - 2))
    assert not sums.kl.requires_grad


def test_sums_add_up_over_tokens_and_rows() -> None:
    torch.manual_seed(0)
    new, old, ref = (-torch.rand(4, 5, dtype=torch.float64) for _ in range(3))
    advantages, mask = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64), torch.rand(4, 5) < 0.7
    whole = token_loss(new, old, ref, advantages, mask, 0.2, 0.05)
    parts = [token_loss(new[s], old[s], ref[s], advantages[s], mask[s], 0.2, 0.05) for s in (slice(0, 1), slice(1, 4))]
    for total, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert total.item() == pytest.approx(sum(piece.item() for piece in pieces), rel=1e-12)


def test_flat_tokens_give_the_sums_of_rows() -> None:
    torch.manual_seed(0)
    new, old, ref = (-torch.rand(3, 4, dtype=torch.float64) for _ in range(3))
    advantages, mask = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), torch.rand(3, 4) < 0.5
    rows = token_loss(new, old, ref, advantages, mask, 0.2, 0.05)
    spread, all_true = advantages[:, None].expand(3, 4)[mask], torch.ones(int(mask.sum()), dtype=torch.bool)
    flat = token_loss(new[mask], old[mask], ref[mask], spread, all_true, 0.2, 0.05)
    assert [x.item() for x in flat] == pytest.approx([x.item() for x in rows], rel=1e-12)


def test_tokens_outside_the_mask_have_no_effect_even_if_they_are_not_numbers() -> None:
    new = row(-1.0, math.nan, -math.inf).requires_grad_()
    other = row(-1.0, 3.0, math.nan)
    sums = token_loss(new, other, other, torch.tensor([1.0]), torch.tensor([[True, False, False]]), 0.2, 0.1)
    (gradient,) = torch.autograd.grad(sums.loss, new)
    assert sums.loss.item() == -1.0
    assert sums.kl.item() == 0.0
    assert gradient.tolist() == [[-1.0, 0.0, 0.0]]
