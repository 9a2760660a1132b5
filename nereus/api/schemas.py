"""What the API takes and gives, as pydantic models: the committed openapi.json is made from them.

Times are `_seconds`, sizes `_bytes`, numbers that JSON cannot carry are null. Answers only ever gain fields.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Schema(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class StageOut(Schema):
    """The layout of one model-stage."""

    tp: int
    """Tensor-parallel degree."""
    pp: int
    """Pipeline stages."""
    dp: int
    """Replicas."""
    devices: list[int]
    """In rank order, one replica after the other."""
    micro_batch: int
    """Sequences of one replica that go through the model together."""
    recompute: bool
    """Whether the backward runs each layer again instead of keeping its activations."""


class PlanOut(Schema):
    """The plan in force."""

    epoch: int
    """0 at the start, one more with each transition."""
    since_step: int
    """Completed steps when it began."""
    paused: bool
    """Whether an operator holds the loop at its boundaries."""
    stages: dict[str, StageOut]
    """By model-stage."""


class StepOut(Schema):
    """The latest completed RL step."""

    step: int
    reward: float | None
    """Mean over the step's samples."""
    response_tokens_mean: float | None
    response_tokens_max: int
    num_samples: int
    loss: float | None
    kl: float | None
    grad_norm: float | None
    updates: int
    """Optimizer updates since the start."""
    step_seconds: float | None
    stage_seconds: dict[str, float | None]
    """By model-stage, and `weight_sync`."""
    peak_bytes: dict[str, int]
    """By endpoint."""


class CheckpointOut(Schema):
    """The latest checkpoint, and the last return to one."""

    step: int
    """Completed steps in it."""
    folder: str
    reason: str
    """Why it was written."""
    size_bytes: int
    seconds: float | None
    """For which the loop stood; null where another run wrote it."""
    restored_after_step: int | None
    """The completed steps at which the job last went back to a checkpoint; null if it never did."""


class DecisionOut(Schema):
    """What was decided on one candidate plan, and why."""

    number: int
    """From 1, in the order of the decisions."""
    step: int
    """Completed steps."""
    cycle: int
    """The replan that it belongs to; one replan judges several candidates."""
    triggers: list[str]
    """Why there was a replan."""
    code: str
    """The verdict."""
    admitted: bool
    dry_run: bool
    """Whether nothing comes of it, whatever the verdict."""
    reason: str
    """One sentence with the numbers."""
    target: dict[str, str]
    """The model-stages that would change, and to what."""
    stages: dict[str, StageOut]
    """The whole candidate plan."""
    l_step_seconds: float | None
    """Predicted time of a step."""
    delta_l_seconds: float | None
    """Predicted saving per step."""
    l_tran_seconds: float | None
    """Predicted time of the transition."""
    payback_steps: float | None
    """Steps until the saving has paid for the transition; null if it never does."""
    horizon_steps: float | None
    """How long conditions are expected to hold."""
    gamma: float | None
    """The share of the horizon within which it has to pay."""
    peak_bytes: int
    """Predicted, of the worst device in a step of the candidate."""
    transition_peak_bytes: int
    """Predicted, of the worst device while moving there."""
    moved_bytes: int
    """Predicted, between endpoints."""
    primitives: dict[str, int]


class TransitionOut(Schema):
    """A transition that was carried out."""

    number: int
    """From 1, in order."""
    step: int
    """Completed steps at its boundary."""
    epoch: int
    """The epoch that it began."""
    trigger: str
    primitives: dict[str, int]
    joined: list[int]
    """Devices that started for it."""
    left: list[int]
    """Devices that ended after it."""
    stages: dict[str, StageOut]
    """The plan that it led to."""
    seconds: float | None
    """Set-up, movement and commit."""
    predicted_seconds: float | None
    """What was predicted for `seconds` before it began."""
    setup_seconds: float | None
    """Part of `seconds`: making communicators."""
    digest_seconds: float | None
    """Proving that no state was lost; not part of `seconds`."""
    stall_seconds: float | None
    """How long the loop waited: `seconds`, `digest_seconds`, and until what changes had come to rest."""
    moved_bytes: int
    """Between endpoints."""
    peak_bytes: int
    """Of the worst device."""
    groups_made: int
    groups_reused: int
    streams: int
    """Operations that ran in buckets, since old and new did not fit at once."""
    digest_equal: bool


class DeviceOut(Schema):
    """A device of the pool."""

    device: int
    endpoint: str
    """The process that serves it."""
    state: Literal["ready", "leaving"]
    since_step: int
    """Completed steps when it came into this state."""
    leaves_after_step: int | None
    """The last step that it serves, when it leaves."""
    model_stages: list[str]
    """Those of the plan in force that use it."""


class Decisions(Schema):
    """A page, newest first."""

    items: list[DecisionOut]
    next_cursor: str | None
    """For the page after this one; null on the last."""


class Transitions(Schema):
    """A page, newest first."""

    items: list[TransitionOut]
    next_cursor: str | None
    """For the page after this one; null on the last."""


class Devices(Schema):
    """A page, in the order of device numbers."""

    items: list[DeviceOut]
    next_cursor: str | None
    """For the page after this one; null on the last."""


class ReplanIn(Schema):
    """An operator wants the plan to be looked at again, now."""

    dry_run: bool = Field(default=False, strict=True)
    """Decide and record, but change nothing."""
    forced: bool = Field(default=False, strict=True)
    """Carry out the best feasible plan even if it does not pay."""


class ReplanOut(Schema):
    """A request for a replan, and what came of it."""

    id: str
    dry_run: bool
    forced: bool
    state: Literal["accepted", "decided"]
    """accepted: the controller has it. decided: there are decisions."""
    decisions: list[DecisionOut]
    """In the order in which candidates were judged."""


class CommandIn(Schema):
    """What an operator wants of the job, beside a replan."""

    verb: Literal["pause", "resume", "abort", "rollback"]
    """Hold the loop at its next boundary; let it go; end what is planned or moving; go back to the plan before."""


class CommandOut(Schema):
    """A command, and what it comes to."""

    id: str
    verb: Literal["pause", "resume", "abort", "rollback"]
    state: Literal["accepted", "answered"]
    """accepted: the controller has it. answered: `done` and `reason` are there."""
    done: bool | None
    """False where it cannot be; null before the answer."""
    reason: str | None
    """One sentence: what happens now, or why nothing does."""


class JobOut(Schema):
    """A job that this API serves."""

    number: int
    """From 1, in the order in which the jobs came."""
    job: str
    """Its name, for `?job=`."""
    ready: bool
    """Whether a plan is in force and its controller answers."""
    reasons: list[str]
    """Why it is not, if so."""
    step: int
    """Completed RL steps."""
    epoch: int | None
    """Of the plan in force; null before the first."""


class JobList(Schema):
    """A page, in the order in which the jobs came."""

    items: list[JobOut]
    next_cursor: str | None
    """For the page after this one; null on the last."""


class Health(Schema):
    """All is well."""

    status: Literal["ok", "ready"]


class Problem(Schema):
    """What went wrong, by RFC 9457 (application/problem+json)."""

    type: str
    """Stable: programs can rely on it."""
    title: str
    status: int
    detail: str
    reasons: list[str] | None = None
    """Of not being ready, one by one."""
    errors: list[FieldError] | None = None
    """What is wrong with the request, field by field."""
    jobs: list[str] | None = None
    """The jobs that are there, where the request named none of them."""


class FieldError(Schema):
    """One thing that is wrong with a request."""

    field: str
    """Where: `query.limit`, `body.dry_run`."""
    message: str
