"""Rollouts as values, and their record on disk: what generation hands to training.

    generation -> Rollout -> scores -> training          RolloutRecorder -> step-000007.npz -> RecordedRollouts

A recorded run trains on the same tokens, log probabilities and rewards bit for bit, so that two layouts can be compared
without the difference that sampling would make.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

from nereus.errors import UserError

FILLER = 0
"""Token after the end of a row. Never read: lengths say where a row ends. 0 is an id in every vocabulary."""


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """N responses to prompts, one a row, on the CPU. Rows of one prompt follow each other."""

    sample_ids: torch.Tensor
    """int64 [N], unique over the run; the noise of a row is keyed by it."""
    prompt_index: torch.Tensor
    """int64 [N], the task's index of the prompt."""
    tokens: torch.Tensor
    """int64 [N, T]: prompt, response, filler; T is the longest row's length."""
    prompt_length: torch.Tensor
    """int64 [N], tokens of the prompt."""
    response_length: torch.Tensor
    """int64 [N], tokens of the response, its end token included."""
    old_logprobs: torch.Tensor
    """Float [N, T] of the job's dtype: at t the log probability of token t given those before it; 0 outside the response."""
    rewards: torch.Tensor
    """float64 [N]."""

    @property
    def num_response_tokens(self) -> int:
        """Response tokens of all rows: what a loss per token is divided by."""
        return int(self.response_length.sum())

    @property
    def response_mask(self) -> torch.Tensor:
        """bool [N, T]: where a response token is; aligned with `tokens` and `old_logprobs`."""
        at = torch.arange(self.tokens.shape[1])
        start = self.prompt_length[:, None]
        return (at >= start) & (at < start + self.response_length[:, None])

    def rows(self, low: int, high: int) -> Rollout:
        """Rows low <= n < high, cut to the longest of them."""
        return self.select(torch.arange(low, high))

    def select(self, indices: torch.Tensor | Sequence[int]) -> Rollout:
        """Rows by index, in the order given, cut to the longest of them."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        longest = _longest(self.prompt_length[chosen] + self.response_length[chosen])
        parts = {field.name: getattr(self, field.name)[chosen] for field in fields(self)}
        return Rollout(**{name: part[:, :longest] if part.ndim == 2 else part for name, part in parts.items()})

    @classmethod
    def concat(cls, parts: Sequence[Rollout]) -> Rollout:
        """The rows of all parts, in order, padded to the longest. At least one part."""
        longest = max(part.tokens.shape[1] for part in parts)
        columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(cls)}
        return cls(
            **{
                name: torch.cat([_widened(value, longest) if value.ndim == 2 else value for value in values])
                for name, values in columns.items()
            }
        )


class RolloutRecorder:
    """Writes the rollouts of each step to one file in a directory, which it makes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, step: int, rollout: Rollout) -> Path:
        """Write a step's rollouts, whole or not at all; returns the file. Raises UserError for a dtype NumPy lacks."""
        if rollout.old_logprobs.dtype not in (torch.float32, torch.float64):
            raise UserError(f"rollouts of dtype {rollout.old_logprobs.dtype} cannot be recorded; use float32 or float64")
        self._directory.mkdir(parents=True, exist_ok=True)
        path = step_file(self._directory, step)
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=self._directory)
        try:
            with os.fdopen(handle, "wb") as file:
                arrays = {field.name: getattr(rollout, field.name).detach().numpy() for field in fields(rollout)}
                np.savez(file, allow_pickle=False, **arrays)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
        return path


class RecordedRollouts:
    """The rollouts that a `RolloutRecorder` wrote."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def step(self, step: int) -> Rollout:
        """A step's rollouts, every number as it was recorded. Raises UserError for a step that wasn't recorded."""
        path = step_file(self._directory, step)
        if not path.exists():
            steps = sorted(int(file.stem.removeprefix("step-")) for file in self._directory.glob("step-*.npz"))
            have = f"it holds steps {steps[0]} to {steps[-1]} ({len(steps)} files)" if steps else "it holds none"
            raise UserError(f"no rollouts of step {step} in {self._directory}: {have}; record more or run fewer steps")
        with np.load(path, allow_pickle=False) as arrays:
            return Rollout(**{field.name: torch.from_numpy(arrays[field.name]) for field in fields(Rollout)})


def step_file(directory: Path, step: int) -> Path:
    """The file of a step's recorded rollouts."""
    return directory / f"step-{step:06d}.npz"


def _longest(lengths: torch.Tensor) -> int:
    return int(lengths.max()) if lengths.numel() else 0


def _widened(values: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=FILLER)
