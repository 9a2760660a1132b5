"""The names of the model-stages: a model in a role. The native GRPO job has exactly these three."""

from __future__ import annotations

ACTOR_GENERATION = "actor_generation"
"""Samples responses with the newest weights."""
REFERENCE_INFERENCE = "reference_inference"
"""Scores responses with the weights that the run started from."""
ACTOR_TRAINING = "actor_training"
"""Accumulates gradients and applies AdamW; the source of the weight sync."""

STAGES = (ACTOR_GENERATION, REFERENCE_INFERENCE, ACTOR_TRAINING)
"""All model-stages, in the order in which an RL step runs them."""
