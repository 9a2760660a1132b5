"""What one RL step works on, as the cost model sees it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one RL step."""

    sequences: int
    """Of the whole step, over all replicas."""
    prompt_tokens: float
    """Of one sequence: the longest for memory, the mean for latency; so below."""
    response_tokens: float
    updates: int = 1
    """Optimizer updates that the step's sequences are divided over."""

    @property
    def length(self) -> float:
        """Tokens of one sequence."""
        return self.prompt_tokens + self.response_tokens

    def rows(self, dp: int, *, trains: bool) -> int:
        """Sequences that the busiest replica works on at a time: of one update if it trains, else of the step."""
        return ceil(self.sequences / (self.updates if trains else 1) / dp)
