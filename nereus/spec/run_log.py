"""The log of a run of verl: how long its responses were, and how long each model-stage took, step by step.

    {"step": 1, "data": {"timing_s/gen": 51.2, "response_length/mean": 6364.0, ...}}   trainer.logger='["console","file"]'
    step,timing_s_gen,response_length_mean,...                                         the same as a CSV

Peaks of memory are not read: what verl logs is one rank's maximum over the life of its process, pools that sleep included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nereus.errors import UserError
from nereus.spec.log_table import LENGTH_COLUMNS, MOST, STEP_COLUMNS, LogTable, read_log
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.spec.workflow import BASELINE_GENERATION, CRITIC_INFERENCE, CRITIC_TRAINING, REWARD_INFERENCE

ACTOR_INFERENCE = "actor_inference"
"""Log-probabilities of the responses under the weights that made them, computed again on the EMUs of actor_training: verl
takes them by default. No model-stage of a plan, and as good a measurement of a forward as any."""

TIMINGS: Mapping[str, str] = {
    ACTOR_GENERATION: "timing_s/gen",
    BASELINE_GENERATION: "timing_s/gen_max",
    ACTOR_INFERENCE: "timing_s/old_log_prob",
    REFERENCE_INFERENCE: "timing_s/ref",
    REWARD_INFERENCE: "timing_s/reward",
    CRITIC_INFERENCE: "timing_s/values",
    ACTOR_TRAINING: "timing_s/update_actor",
    CRITIC_TRAINING: "timing_s/update_critic",
}
"""What verl calls the seconds of each model-stage."""

PROMPT_COLUMNS = ("prompt_length/mean",)
LONGEST_COLUMNS = ("response_length/max",)


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One RL step that ran."""

    step: int
    prompt_tokens: float | None
    """Mean of a prompt; None where the log does not say."""
    response_tokens: float
    """Mean of a response."""
    longest_tokens: float | None
    """The longest response; None where the log does not say."""
    seconds: Mapping[str, float]
    """By model-stage."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """A run, as far as its log tells."""

    steps: tuple[LoggedStep, ...]
    num_left_out: int
    """Rows without responses, or without the time of any model-stage, such as those of a validation."""


def read_run(path: Path) -> RunLog:
    """The run in a log. Raises UserError with the file, the line and the value."""
    log = read_log(path)
    log.column(LENGTH_COLUMNS)
    if all(log.optional([name]) is None for name in TIMINGS.values()):
        names = ", ".join(TIMINGS.values())
        raise UserError(f"{path}: there is no column of stage times; calibrating needs one or more of {names}")
    found = [step for line, row in log.rows if (step := _step(log, line, row)) is not None]
    if not found:
        raise UserError(f"{path}: no row has a length of responses and a stage time; calibrating needs at least one")
    return RunLog(tuple(found), len(log.rows) - len(found))


def _step(log: LogTable, line: int, row: Mapping[str, object]) -> LoggedStep | None:
    at = log.number(line, row, log.optional(STEP_COLUMNS))
    response = _positive(log, line, row, LENGTH_COLUMNS)
    seconds = {stage: taken for stage, name in TIMINGS.items() if (taken := _positive(log, line, row, (name,)))}
    if response is None or not seconds:
        return None
    prompt, longest = (_positive(log, line, row, names) for names in (PROMPT_COLUMNS, LONGEST_COLUMNS))
    return LoggedStep(int(line if at is None else at), prompt, response, longest, seconds)


def _positive(log: LogTable, line: int, row: Mapping[str, object], names: tuple[str, ...]) -> float | None:
    column = log.optional(names)
    value = log.number(line, row, column)
    if value is not None and value > MOST:
        raise UserError(f"{log.path}, line {line}: {column} {value!r} is not allowed; it must be at most {MOST:.0f}")
    return value if value is not None and value > 0 else None
