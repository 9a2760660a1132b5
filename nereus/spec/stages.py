"""The names of the model-stages: a model in a role. The native GRPO job has exactly three."""

from __future__ import annotations

ACTOR_GENERATION = "actor_generation"
"""Samples responses with the newest weights."""
REFERENCE_INFERENCE = "reference_inference"
"""Scores responses with the weights that the run started from."""
ACTOR_TRAINING = "actor_training"
"""Accumulates gradients and applies AdamW; the source of the weight sync."""

STAGES = (ACTOR_GENERATION, REFERENCE_INFERENCE, ACTOR_TRAINING)
"""All model-stages, in the order in which an RL step runs them."""

ROLES = ("generation", "inference", "training")
"""What the name of a model-stage ends in, after an underscore, in any job: `critic_training`."""


def role_of(stage: str) -> str | None:
    """The role of a model-stage, by its name; None for what is no name of one."""
    model, _, role = stage.rpartition("_")
    return role if model and role in ROLES else None
