"""AdamW on shards equals torch.optim.AdamW on the whole."""

from __future__ import annotations

import pytest
import torch

from nereus.rl.adamw import adamw_


def gradients(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(37, 11, generator=generator, dtype=torch.float64).to(dtype) for _ in range(5)]


def torch_adamw(start: torch.Tensor, weight_decay: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    param = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([param], lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay, foreach=False)
    for grad in gradients(start.dtype):
        param.grad = grad.clone()
        optimizer.step()
    state = optimizer.state[param]
    return param.detach(), state["exp_avg"], state["exp_avg_sq"]


def our_adamw(start: torch.Tensor, weight_decay: float, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    param = start[rows].clone()
    exp_avg, exp_avg_sq = torch.zeros_like(param), torch.zeros_like(param)
    for update, grad in enumerate(gradients(start.dtype), 1):
        adamw_(param, grad[rows], exp_avg, exp_avg_sq, update, 3e-3, (0.9, 0.95), 1e-8, weight_decay)
    return param, exp_avg, exp_avg_sq


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_five_updates_equal_those_of_torch_bit_for_bit(dtype: torch.dtype, weight_decay: float) -> None:
    start = torch.randn(37, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    expected = torch_adamw(start, weight_decay)
    for ours, theirs in zip(our_adamw(start, weight_decay, slice(None)), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_updates_of_shards_are_those_of_the_whole() -> None:
    start = torch.randn(37, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = our_adamw(start, 0.1, slice(None))
    for cut in (1, 6, 20):
        for rows in (slice(0, cut), slice(cut, 37)):
            for part, expected in zip(our_adamw(start, 0.1, rows), whole, strict=True):
                torch.testing.assert_close(part, expected[rows], rtol=1e-15, atol=1e-18)


def test_the_gradient_is_left_as_it_is() -> None:
    param, grad = torch.ones(3), torch.full((3,), 0.5)
    adamw_(param, grad, torch.zeros(3), torch.zeros(3), 1, 0.1, (0.9, 0.95), 1e-8, 0.1)
    assert grad.tolist() == [0.5] * 3
    # The first update moves by the learning rate against the gradient's sign, after the decay of 1 %.
    assert param.tolist() == pytest.approx([0.89] * 3)


def test_update_numbers_start_at_one() -> None:
    with pytest.raises(ValueError, match="update 0"):
        adamw_(torch.ones(1), torch.ones(1), torch.zeros(1), torch.zeros(1), 0, 0.1, (0.9, 0.95), 1e-8, 0.0)
