"""An outline: an RL job on accelerators as far as a plan depends on it, before anything of it exists.

    outline.yaml -> read_outline -> Outline (models by config.json, algorithm, workload, nodes) -> `nereus plan`

A job file says how the native job runs; an outline says what any framework's job would have to compute, and on what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, Strict, ValidationError, field_validator, model_validator

from nereus.spec.declared import Declared, Real, Whole
from nereus.spec.devices import MAX_DEVICES_PER_NODE, MAX_NODES
from nereus.spec.hardware import ACCELERATORS, Accelerator
from nereus.spec.hf_config import HfModel, parse_hf_config
from nereus.spec.inventory import with_inventories
from nereus.spec.pins import Pin, model_problems, pin_problems
from nereus.spec.policy import HEADROOM
from nereus.spec.problems import Problem, from_validation, refuse, unknown
from nereus.spec.reading import read_data
from nereus.spec.sizes import Bytes
from nereus.spec.workflow import Algorithm, Workflow, workflow


class Models(Declared):
    """The `config.json` of each model; relative paths count from the outline."""

    actor: str = Field(min_length=1)
    """Generates and trains; a frozen copy of it is the reference."""
    critic: str | None = Field(default=None, min_length=1)
    """Of PPO; null: as large as the actor."""
    reward: str | None = Field(default=None, min_length=1)
    """Scores responses; null: as large as the actor. `rule`: no model, responses are scored on the CPU."""


class Sequences(Declared):
    """The sequences of one RL step."""

    prompts_per_step: Whole = Field(ge=1)
    """Prompts drawn for each step."""
    samples_per_prompt: Whole = Field(default=1, ge=1)
    """Responses sampled for each prompt."""
    prompt_tokens: Whole = Field(ge=1)
    """Mean of a prompt, in tokens."""
    response_tokens: Whole = Field(ge=1)
    """Mean of a response, in tokens: decides latency."""
    longest_response_tokens: Whole = Field(default=0, ge=0)
    """The longest response that must fit, in tokens: decides memory. 0: twice the mean."""
    updates_per_step: Whole = Field(default=1, ge=1)
    """Optimizer updates that the step's sequences are divided over."""

    @property
    def global_batch(self) -> int:
        """Sequences of one RL step."""
        return self.prompts_per_step * self.samples_per_prompt

    @model_validator(mode="after")
    def _fits_together(self) -> Sequences:
        if self.global_batch % self.updates_per_step:
            raise ValueError(f"updates_per_step must divide the step's {self.global_batch} sequences")
        if 0 < self.longest_response_tokens < self.response_tokens:
            raise ValueError(f"longest_response_tokens must be 0 or at least response_tokens, {self.response_tokens}")
        return self

    @property
    def longest_tokens(self) -> int:
        """The longest response that must fit."""
        return self.longest_response_tokens or 2 * self.response_tokens


class Nodes(Declared):
    """Equal nodes of one accelerator kind."""

    kind: str
    """Name of the accelerator, such as H100 or A100-80GB."""
    count: Whole = Field(default=1, ge=1, le=MAX_NODES)
    """How many there are."""
    devices: Whole = Field(default=8, ge=1, le=MAX_DEVICES_PER_NODE)
    """Devices of each."""
    memory: Annotated[Bytes, Field(le=2**50)] | None = None
    """Bytes of one device, such as 80GiB; null: the datasheet's."""
    host_memory: Annotated[Bytes, Field(le=2**50)] | None = None
    """Bytes of one node's host that a plan may fill with offloaded state, such as 1TiB; null: nothing is offloaded."""
    host_bytes_s: Annotated[Bytes, Field(ge=1, le=2**50)] | None = None
    """Bytes per second between one device and its host, in one direction, such as 25GB; null: the datasheet's."""
    node_bytes_s: Annotated[Bytes, Field(ge=1, le=2**50)] | None = None
    """Bytes per second between one device and the others of its node, in one direction; null: the datasheet's."""
    network_bytes_s: Annotated[Bytes, Field(ge=1, le=2**50)] | None = None
    """Bytes per second of one device to other nodes, in one direction; null: those of the maker's reference node."""
    price_per_hour: Real | None = Field(default=None, gt=0, le=1e9)
    """Of one device, in any currency; null: costs are not told."""
    inventory: str | None = Field(default=None, min_length=1)
    """A file of `nereus inventory`, from the outline on: what it says stands for what is not declared beside it."""

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        if kind not in ACCELERATORS:
            raise ValueError(unknown(kind, ACCELERATORS, "accelerator"))
        return kind

    @property
    def memory_bytes(self) -> int:
        """Of one device."""
        return self.memory or ACCELERATORS[self.kind].memory_bytes

    @property
    def accelerator(self) -> Accelerator:
        """One device: its kind's datasheet, with what is declared of this one in its place."""
        known = ACCELERATORS[self.kind]
        return replace(
            known,
            memory_bytes=self.memory_bytes,
            node_bytes_s=self.node_bytes_s or known.node_bytes_s,
            network_bytes_s=self.network_bytes_s or known.network_bytes_s,
            host_bytes_s=self.host_bytes_s or known.host_bytes_s,
            price_per_hour=self.price_per_hour,
        )


def slowest(groups: Sequence[Nodes]) -> Accelerator:
    """A device of node groups of one kind: with the least memory, and links as slow as the slowest."""
    all_of_them = [group.accelerator for group in groups]
    return replace(
        ACCELERATORS[groups[0].kind],
        memory_bytes=min(one.memory_bytes for one in all_of_them),
        node_bytes_s=min(one.node_bytes_s for one in all_of_them),
        network_bytes_s=min(one.network_bytes_s for one in all_of_them),
        host_bytes_s=min(one.host_bytes_s for one in all_of_them),
    )


NO_PIN = Pin()
"""Nothing is settled."""


class Outline(Declared):
    """One RL post-training job, by what its plan depends on."""

    name: str = Field(min_length=1)
    """What tables call it."""
    algorithm: Algorithm
    """ppo, grpo or remax."""
    asynchronous: Annotated[bool, Strict()] = False
    """Whether a batch is generated while the one before it is trained on, on devices of its own."""
    models: Models
    """By their config.json."""
    workload: Sequences
    """The batch of one RL step."""
    nodes: tuple[Nodes, ...] = Field(min_length=1)
    """The pool, node group by node group; EMUs stay on one kind."""
    micro_batches: tuple[Annotated[Whole, Field(ge=1)], ...] = Field(default=(1, 2, 4, 8), min_length=1)
    """Sequences that go through a model together, to choose from."""
    sequence_parallel: Annotated[bool, Strict()] = True
    """Whether norms and residuals are sharded along the sequence under TP."""
    framework: Literal["plain", "megatron"] = "plain"
    """Whose habits the training has: how ranks are numbered and gradients kept."""
    headroom: Real = Field(default=HEADROOM, ge=0, lt=1)
    """Share of a device's memory that a plan leaves free (paper, section 4.2)."""
    pins: Mapping[str, Pin] = Field(default_factory=dict)
    """What is settled about model-stages before the search: model-stage to pin."""

    @property
    def workflow(self) -> Workflow:
        """The model-stages of a step."""
        return workflow(self.algorithm, asynchronous=self.asynchronous, reward_model=self.models.reward != "rule")

    @property
    def num_devices(self) -> int:
        """Of all nodes."""
        return sum(group.count * group.devices for group in self.nodes)

    @property
    def device_kinds(self) -> tuple[tuple[str, int], ...]:
        """Accelerator and bytes of every device, in the order of the nodes."""
        return tuple((group.kind, group.memory_bytes) for group in self.nodes for _ in range(group.count * group.devices))

    def pin(self, holder: str) -> Pin:
        """What is settled about a model-stage; an empty pin where nothing is."""
        return self.pins.get(holder, NO_PIN)


def is_outline(data: object) -> bool:
    """Whether plain data is an outline rather than a job file: a job has neither of these fields."""
    return isinstance(data, Mapping) and not {"algorithm", "models"}.isdisjoint(data)


def read_outline(data: object, folder: Path) -> Outline:
    """The outline in the plain data of a file in `folder`, what its `inventory` files say included. Raises JobFileError."""
    return parse_outline(with_inventories(data, folder))


def parse_outline(data: object) -> Outline:
    """The outline in plain data. Raises JobFileError with all problems in one message."""
    try:
        outline = Outline.model_validate(data)
    except ValidationError as error:
        raise refuse(from_validation(error, Outline, data)) from None
    work, flow = outline.workload, outline.workflow
    problems = [*pin_problems(outline.pins, flow, work.global_batch, work.updates_per_step, outline.device_kinds)]
    if problems:
        raise refuse(problems)
    return outline


def read_models(outline: Outline, folder: Path) -> Mapping[str, HfModel]:
    """The model of each name that the workflow uses: actor, reference, critic, reward. Raises JobFileError."""
    paths = {"actor": outline.models.actor, "critic": outline.models.critic, "reward": outline.models.reward}
    needed = {stage.model for stage in outline.workflow.stages}
    unused = [name for name in ("critic", "reward") if paths[name] not in (None, "rule") and name not in needed]
    if unused:
        allowed = f"{outline.algorithm} has no {unused[0]}; leave it out"
        raise refuse([Problem(f"models.{unused[0]}", paths[unused[0]], allowed)])
    found: dict[str, HfModel] = {}
    for name in sorted(needed):
        declared = name if paths.get(name) else "actor"
        path = folder / (paths[declared] or "")
        found[name] = parse_hf_config(read_data(path, f"models.{declared}"), str(path))
    decoders = {holder: found[outline.workflow.stage(holder).model].decoder for holder in outline.pins}
    problems = [*model_problems(outline.pins, decoders)]
    if problems:
        raise refuse(problems)
    return found
