"""How the actor learns: AdamW and GRPO."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nereus.spec.declared import Declared, Real, Whole

Beta = Annotated[Real, Field(ge=0, lt=1)]
"""A decay rate of AdamW."""


class Optimizer(Declared):
    """AdamW with a bound on the global gradient norm."""

    learning_rate: Real = Field(gt=0)
    """Step size, constant over the run. No default: it belongs to the model's size."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay rates of the first and second moment; 0.95, as usual for language models, forgets stale gradients sooner."""
    eps: Real = Field(default=1e-8, gt=0)
    """Added to the root of the second moment; AdamW's usual value."""
    weight_decay: Real = Field(default=0.0, ge=0)
    """Decoupled weight decay per step and unit of learning rate; RL post-training mostly goes without."""
    max_grad_norm: Real = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm (all ranks together)."""


class Grpo(Declared):
    """Group-relative policy optimization: the clipped objective with a KL term to the reference."""

    clip_ratio: Real = Field(default=0.2, gt=0)
    """How far the ratio of new to old probability may leave 1 before the gradient stops; PPO's usual value."""
    kl_coef: Real = Field(default=0.001, ge=0)
    """Weight of the KL divergence from the reference; verl's value for GRPO."""
    advantage_eps: Real = Field(default=1e-4, gt=0)
    """Added to the standard deviation of a group's rewards, so that a group of equal rewards has advantage 0."""
    updates_per_step: Whole = Field(default=1, ge=1)
    """AdamW updates of one RL step, each on an equal share of its sequences; with 1, no update is off-policy."""
