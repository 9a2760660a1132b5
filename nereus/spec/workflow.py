"""RL workflows: which model-stages an RL step has, what each waits for, and where new weights go.

    algorithm, synchronous or not -> Workflow -> the overlap graph (nereus/cost/overlap.py) -> L_step

    PPO     actor_generation -> reference, reward and critic_inference -> actor_training, critic_training
    GRPO    actor_generation -> reference and reward_inference -> actor_training
    ReMax   actor_generation, baseline_generation (greedy, the baseline of the reward) -> as GRPO

Nothing here knows of devices: whether model-stages share them is a plan's choice, within `apart`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE, ROLES, role_of

REWARD_INFERENCE = "reward_inference"
"""Scores responses with a reward model."""
CRITIC_INFERENCE = "critic_inference"
"""Estimates the value of each token."""
CRITIC_TRAINING = "critic_training"
"""Updates the critic."""
BASELINE_GENERATION = "baseline_generation"
"""ReMax's second rollout: one greedy response to each prompt, whose reward is the baseline."""

GENERATION, INFERENCE, TRAINING = ROLES
"""The stages of an RL step, in their order; the role of a model-stage is the stage that it runs in."""


class Algorithm(StrEnum):
    """What an RL step computes."""

    PPO = "ppo"
    """Ouyang et al. 2022: actor, critic, reference and reward model."""
    GRPO = "grpo"
    """Shao et al. 2024: groups of samples in place of a critic."""
    REMAX = "remax"
    """Li et al. 2024: the reward of a greedy response in place of a critic."""


@dataclass(frozen=True, slots=True)
class ModelStage:
    """A model in a role, and what it waits for."""

    name: str
    after: tuple[str, ...] = ()
    """The model-stages of the same batch whose results it takes."""
    units: str = ""
    """The model-stage whose EMUs it runs on; itself unless said."""

    @property
    def role(self) -> str:
        """The stage that it runs in: generation, inference or training."""
        return role_of(self.name) or ""

    @property
    def model(self) -> str:
        """Whose weights it uses: `actor`, `critic`, `reference`, `reward`."""
        return self.holder.rpartition("_")[0]

    @property
    def holder(self) -> str:
        """The model-stage whose devices a plan names for it."""
        return self.units or self.name


@dataclass(frozen=True, slots=True)
class WeightSync:
    """New weights on their way from the EMUs that trained them to EMUs that use them."""

    source: str
    target: str

    @property
    def name(self) -> str:
        """What it is called beside model-stages."""
        return f"{self.source} to {self.target}"


@dataclass(frozen=True, slots=True)
class Workflow:
    """One RL step of an algorithm."""

    algorithm: Algorithm
    stages: tuple[ModelStage, ...]
    """In an order in which each comes after what it waits for."""
    syncs: tuple[WeightSync, ...]
    """After the boundary, before the next generation."""
    asynchronous: bool = False
    """Whether a batch is generated while the one before it is scored and trained on (one step off policy)."""

    @property
    def holders(self) -> tuple[str, ...]:
        """The model-stages that have EMUs of their own: those that a plan gives devices to."""
        return tuple(stage.name for stage in self.stages if stage.holder == stage.name)

    def stage(self, name: str) -> ModelStage:
        """The model-stage of this name."""
        return next(stage for stage in self.stages if stage.name == name)

    def roles(self, holder: str) -> tuple[str, ...]:
        """The model-stages that run on the EMUs of one, itself among them."""
        return tuple(stage.name for stage in self.stages if stage.holder == holder)

    def dependencies(self) -> Iterator[tuple[str, str]]:
        """Pairs (earlier, later) of one interval between two boundaries.

        Asynchronously, what is scored and trained on was generated in the interval before: nothing waits for generation.
        """
        for stage in self.stages:
            for earlier in stage.after:
                if not self.asynchronous or self.stage(earlier).role != GENERATION:
                    yield earlier, stage.name

    def apart(self) -> Iterator[tuple[str, str]]:
        """Pairs of holders that must not share a device: generation that never pauses, and what runs beside it."""
        if self.asynchronous:
            generating = [name for name in self.holders if self.stage(name).role == GENERATION]
            others = [name for name in self.holders if self.stage(name).role != GENERATION]
            yield from ((one, other) for one in generating for other in others)


@lru_cache(maxsize=64)
def workflow(
    algorithm: Algorithm, *, asynchronous: bool = False, reward_model: bool = True, critic_apart: bool = False
) -> Workflow:
    """The workflow of an algorithm (paper, section 2).

    Each stage waits for all of the one before it, as in verl's trainer. Without a `reward_model`, rewards come from a rule
    on the CPU. `critic_apart` gives critic_inference EMUs of its own, which then need a weight sync; else it runs on those
    of critic_training.
    """
    rollouts = [ModelStage(ACTOR_GENERATION)]
    if algorithm is Algorithm.REMAX:
        rollouts.append(ModelStage(BASELINE_GENERATION, units=ACTOR_GENERATION))
    generated = tuple(stage.name for stage in rollouts)
    scores = [ModelStage(REFERENCE_INFERENCE, generated)]
    if reward_model:
        scores.append(ModelStage(REWARD_INFERENCE, generated))
    if algorithm is Algorithm.PPO:
        scores.append(ModelStage(CRITIC_INFERENCE, generated, "" if critic_apart else CRITIC_TRAINING))
    waits = tuple(stage.name for stage in scores) + (() if reward_model else generated)
    updates = [ModelStage(ACTOR_TRAINING, waits)]
    syncs = [WeightSync(ACTOR_TRAINING, ACTOR_GENERATION)]
    if algorithm is Algorithm.PPO:
        updates.append(ModelStage(CRITIC_TRAINING, waits))
        syncs += [WeightSync(CRITIC_TRAINING, CRITIC_INFERENCE)] if critic_apart else []
    return Workflow(algorithm, (*rollouts, *scores, *updates), tuple(syncs), asynchronous)
