"""How the plan may change by itself: whether at all, what counts as drift, and what must pay (paper, section 4).

Policy -> planner (headroom, top), triggers (delta_*), admission (gamma, guards), emulated pool (notice_steps)
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from nereus.spec.declared import Declared, Real, Whole
from nereus.spec.sizes import Bytes

HEADROOM = 0.1
"""Share of a device's memory that plans leave free unless told otherwise (paper, section 4.2)."""


GAMMA = 0.5
"""Confidence margin (paper, section 4.3): payback within half of the horizon; the rest is kept for uncertainty."""

DELTA_LENGTH = 0.3
"""Relative change of the mean response length that triggers (paper, section 4.1: delta_len = 30 %)."""

DELTA_COMPUTE = 0.2
"""Relative change of the compute efficiency that triggers. Fits move by a few percent on a disturbed step; a fifth is what a
throttled clock or a neighbour on the host takes, and changes which plan is best."""

DELTA_COMMUNICATION = 0.5
"""Relative change of the communication efficiency that triggers. Messages are a small part of most steps, so that they are
learnt with a spread of about as much; congestion worth a new plan halves a link's bandwidth or worse."""


class CheckpointRule(Declared):
    """When the state of the job is saved, and where. It is always saved before the job has to wait for a plan."""

    folder: str | None = Field(default=None, min_length=1)
    """Where checkpoints go, under one path on all nodes; a relative path counts from the job file. null: `checkpoints` in
    the run's folder."""
    every_steps: Whole | None = Field(default=None, ge=1)
    """RL steps from one checkpoint to the next, each of which the loop waits for; null: only when it is needed. With it, a
    job goes on after the last unit of a model-stage has died, from as many steps ago at most."""
    keep: Whole = Field(default=2, ge=1)
    """Checkpoints that stay; older ones are deleted once a newer one is whole."""


class Policy(Declared):
    """When Nereus changes the plan, and how sure it must be."""

    adapt: Annotated[bool, Strict()] = False
    """Whether the plan may change by itself; false with scripted `transitions`. Off, the plan is the one declared."""
    gamma: Real = Field(default=GAMMA, ge=0, le=1)
    """Confidence margin of the payback rule, Eq. (2): a transition must pay within gamma of the horizon. The paper's 0.5;
    near 1 it trusts every estimate, 0 admits urgent transitions only."""
    delta_length: Real = Field(default=DELTA_LENGTH, gt=0)
    """Relative change of the mean response length that triggers a replan. The paper's 30 %; lower, noise triggers."""
    delta_compute: Real = Field(default=DELTA_COMPUTE, gt=0)
    """Relative change of the compute efficiency, as learnt from the job's steps, that triggers a replan."""
    delta_communication: Real = Field(default=DELTA_COMMUNICATION, gt=0)
    """The same of the communication efficiency; larger, since messages are learnt less exactly."""
    pins: tuple[str, ...] = ()
    """Model-stages whose stage plan stays as it is, unless the plan in force cannot go on. Each one narrows the search."""
    max_transitions_per_hour: Real | None = Field(default=None, gt=0)
    """Opportunistic transitions in any hour at most; none means no limit, since the payback rule limits them already."""
    canary_steps: Whole = Field(default=0, ge=0)
    """Steps after an opportunistic transition over which its realised saving is compared with the predicted one, against as
    many before it; 0 compares nothing."""
    canary_return: Annotated[bool, Strict()] = False
    """Whether a transition that saved nothing over these steps is taken back by a forced one."""
    headroom: Real = Field(default=HEADROOM, ge=0, lt=1)
    """Share of a device's memory that no plan may be predicted to use; 0.1 covers the error of a prediction."""
    top: Whole = Field(default=4, ge=1)
    """Candidate plans tried, fastest first, before the current one is kept; each costs the planner a transition DAG."""
    micro_batches: tuple[Annotated[Whole, Field(ge=1)], ...] = Field(default=(4, 8, 16, 32, 64), min_length=1)
    """Sequences of one EMU that go through the model together, to choose from. Few large ones make steps fast and memory
    tight, so that growing responses call for another layout sooner."""
    bucket: Bytes = Field(default=64 << 20, ge=1 << 20)
    """Bytes of buffers that moving state may hold on a device each way, and what a streamed transition has twice at once.
    Large ones move a little faster; a stream needs so much room beside the larger of the old and the new shards."""
    notice_steps: Whole = Field(default=2, ge=1)
    """RL steps between the notice that a device leaves and its end; a plan has that long to leave it."""
