"""AdamW on shards: one update of one tensor's part, from its part of the gradient and the moments.

It is elementwise, so a cut changes nothing, needs no collective, and keeps no state of its own: parameters and moments live
in the store, the number of the update is a counter of the unit. The decoupled decay is that of arXiv 1711.05101.
"""

from __future__ import annotations

import torch


@torch.no_grad()
def adamw_(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    update: int,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """Carry out update number `update` (the first is 1) in place on param, exp_avg and exp_avg_sq.

    All four tensors have one shape, dtype and device; grad is left as it is. The operations and their order are those of
    torch.optim.AdamW with foreach=False, so the results are the same bit for bit.
    """
    if update < 1:
        raise ValueError(f"update {update}: the first AdamW update is number 1; count it before it is applied")
    beta1, beta2 = betas
    if weight_decay != 0:
        param.mul_(1 - learning_rate * weight_decay)
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    step_size = learning_rate / (1 - beta1**update)
    denominator = (exp_avg_sq.sqrt() / (1 - beta2**update) ** 0.5).add_(eps)
    param.addcdiv_(exp_avg, denominator, value=-step_size)
