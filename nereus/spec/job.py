"""The job: everything that a person declares about one RL run.

    job.yaml -> load_job (loading.py) -> Job -> actors and rl

A `Job` has the right fields and types; that its parts fit together is what `checks.py` finds out.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from nereus.spec.cluster import Cluster
from nereus.spec.declared import Declared, Whole
from nereus.spec.devices import Devices
from nereus.spec.model import SMOLLM2, ModelShape
from nereus.spec.plan import ScriptedTransition, StageChoice
from nereus.spec.policy import CheckpointRule, Policy
from nereus.spec.training import Grpo, Optimizer
from nereus.spec.workload import Rollouts, Task, Workload

__all__ = [
    "CheckpointRule",
    "Cluster",
    "Grpo",
    "Job",
    "ModelShape",
    "Optimizer",
    "Policy",
    "Rollouts",
    "ScriptedTransition",
    "StageChoice",
    "Task",
    "Workload",
]


class Job(Declared):
    """One RL post-training run of the native job."""

    name: str = Field(min_length=1)
    """What the run is called in tables, journals and folders."""
    seed: Whole = Field(default=0, ge=0)
    """Seed of weights, prompts and sampling; two runs with one seed draw the same noise under any layout."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of parameters, moments and arithmetic; float64 for exactness tests."""
    steps: Whole = Field(ge=1)
    """RL steps of the run, numbered from 1."""
    weights: Literal["random", "smollm2"] = "random"
    """Where the first weights come from: the seed, or the published SmolLM2-135M-Instruct."""
    model: ModelShape
    """Shape of the actor and the reference; left out with `weights: smollm2`, which has its own."""
    task: Task
    """Prompts and reward."""
    workload: Workload
    """The batch of one RL step."""
    optimizer: Optimizer
    """AdamW."""
    grpo: Grpo = Field(default_factory=Grpo)
    """The objective."""
    cluster: Cluster
    """The devices."""
    absent: Devices = ()
    """Devices of the cluster that aren't there at the start; a transition may let them join. None by default; with
    `availability` it is left out, since the trace says who is there."""
    plan: dict[str, StageChoice]
    """Model-stage -> its layout and devices at the start; all three model-stages are named."""
    transitions: tuple[ScriptedTransition, ...] = ()
    """Changes of plan, in the order of their steps; none by default."""
    policy: Policy = Field(default_factory=Policy)
    """How the plan may change by itself."""
    availability: str | None = Field(default=None, min_length=1)
    """CSV of the devices that are there over the run, scaled to the cluster; a relative path counts from the job file. It
    needs `policy.adapt`. null: the pool stays as it is, or is that of a cluster whose nodes the job follows."""
    checkpoint: CheckpointRule = Field(default_factory=CheckpointRule)
    """When the state is saved, and where."""
    rollouts: Rollouts = Field(default_factory=Rollouts)
    """Where responses come from."""
    save_weights: bool = False
    """Whether the trained parameters are written to model.safetensors in the run's folder; they are gathered for it."""

    @model_validator(mode="before")
    @classmethod
    def _weights_bring_their_model(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("weights") == "smollm2" and "model" not in data:
            return {**data, "model": SMOLLM2}
        return data

    @property
    def global_batch(self) -> int:
        """Sequences of one RL step; fixed under any plan."""
        return self.workload.prompts_per_step * self.workload.samples_per_prompt

    def with_steps(self, steps: int) -> Job:
        """This job over another number of steps, without the transitions that would come after its end."""
        kept = tuple(transition for transition in self.transitions if transition.step < steps)
        return self.model_copy(update={"steps": steps, "transitions": kept})
