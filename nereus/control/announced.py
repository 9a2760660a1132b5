"""What watchers are told beforehand: of a job before anything of it runs, of a replan before its verdicts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescribed:
    """What the job is, before anything of it runs; the first news."""

    algorithm: str
    mode: str
    """sync or async."""
    num_steps: int | None
    """RL steps of the job, where it has an end."""
    num_parameters: int
    """Of the model that is trained."""
    usable_bytes: float
    """Memory of a device that a plan may use: declared, less headroom; infinite where none is declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """The planner has answered for the state as it is; the verdicts on its proposals follow."""

    step: int
    cycle: int
    signals: tuple[str, ...]
    """What asked for it: signals that crossed, or `operator`."""
    num_proposals: int
    current_l_step_s: float
    """Predicted seconds per step of the plan in force."""
    seconds: float
    """How long the planner took."""
