"""Recomputation: of a layer only what enters it is kept, and the backward runs its forward again.

    forward   x -> run(x), without a graph                       keeps x and the rotary angles
    backward  x -> run(x) once more, with a graph -> its backward    one layer's activations at a time

Every rank of a group runs the same layers again in the same order, so that the collectives inside match. Gradients are bit
for bit those of a layer whose activations were kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Angles = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, each [batch, 1, length, head_dim / 2]."""
Layer = Callable[[torch.Tensor, Angles], torch.Tensor]
"""Hidden states [batch, length, hidden] through one layer."""


def recomputed(run: Layer, x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """`run(x, angles)`, whose activations are computed again in the backward. Parameters gather their gradients as ever."""
    out: torch.Tensor = _Recomputed.apply(run, x, *angles)  # type: ignore[no-untyped-call]
    return out


class _Recomputed(torch.autograd.Function):
    """torch.utils.checkpoint keeps its inputs and its recomputed tensors out of sight of the hooks that meter memory."""

    @staticmethod
    def forward(ctx: Any, run: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.run = run
        ctx.save_for_backward(x, cos, sin)
        return run(x, (cos, sin))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor | None, None, None]:
        x, cos, sin = ctx.saved_tensors
        entered = x.detach().requires_grad_()
        with torch.enable_grad():
            left = ctx.run(entered, (cos, sin))
        left.backward(*grads)
        return None, entered.grad, None, None
