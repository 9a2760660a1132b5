"""What an RL step works on: the task, the batch, the response cap, and where responses come from."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field

from nereus.spec.declared import Declared, Real, Whole


class Task(Declared):
    """Prompts and the reward that grades the responses."""

    name: Literal["letter_class", "chain_sum"]
    """letter_class: characters of the class that the prompt names, graded densely. chain_sum: sums from reasoning-gym."""
    num_prompts: Whole = Field(default=256, ge=1)
    """Prompts in the data set; 256 are 16 steps of 16. Each is used once per epoch."""


class CapPoint(Declared):
    """A corner of the response cap's curriculum."""

    step: Whole = Field(ge=0)
    """The RL step; the first one is step 1."""
    tokens: Whole = Field(ge=1)
    """Longest response in that step, in tokens."""


class Workload(Declared):
    """The batch of one RL step."""

    prompts_per_step: Whole = Field(ge=1)
    """Prompts drawn for each step."""
    samples_per_prompt: Whole = Field(ge=1)
    """Responses sampled for each prompt: the group over which GRPO normalises rewards."""
    response_cap: tuple[CapPoint, ...] = Field(min_length=1)
    """Longest response over the steps: linear between the corners, constant before the first and after the last."""
    max_prompt_tokens: Whole = Field(default=64, ge=1)
    """Longest prompt, in tokens; 64 holds those of both tasks without a chat template. Buffers are sized by it."""
    temperature: Real = Field(default=1.0, gt=0)
    """Divides the logits before sampling; 1 samples from the policy that is trained."""

    def cap_at(self, step: int) -> int:
        """Longest response in tokens at an RL step, rounded down between two corners."""
        if step <= self.response_cap[0].step:
            return self.response_cap[0].tokens
        for a, b in pairwise(self.response_cap):
            if step < b.step:
                return a.tokens + (b.tokens - a.tokens) * (step - a.step) // (b.step - a.step)
        return self.response_cap[-1].tokens

    @property
    def max_response_tokens(self) -> int:
        """The largest cap of the curriculum, in tokens."""
        return max(point.tokens for point in self.response_cap)


class Rollouts(Declared):
    """Where responses come from. Relative paths count from the job file."""

    source: Literal["live", "recorded"] = "live"
    """live: sampled by actor_generation. recorded: read from `path`, so that two runs train on the same samples."""
    path: str | None = Field(default=None, min_length=1)
    """Recorded rollouts to read; needed with `source: recorded` and refused without it."""
    record: str | None = Field(default=None, min_length=1)
    """Where to write the rollouts of this run; null: nowhere."""
