"""What a model-stage of an outline takes on a device kind in any one way: seconds at mean lengths, bytes at the longest.

    stage or holder, kind, Execution -> cost model of (kind, role) -> seconds, memory, workload

What was told is remembered, since many options and pools ask for the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from nereus.cost.accelerator import AcceleratorModel, Learnt, Prediction
from nereus.cost.components import Component
from nereus.cost.execution import Execution
from nereus.cost.generation import Rollout, generation_workload, kv_token_bytes
from nereus.cost.layer import Architecture
from nereus.cost.priors import known_of
from nereus.cost.training import inference_workload
from nereus.cost.volume import Workload
from nereus.planner.options import LayoutClass
from nereus.spec.hardware import Hardware, LinkClass
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Nodes, Outline, slowest
from nereus.spec.stages import ROLES
from nereus.spec.workflow import GENERATION, TRAINING

SYNC_EFFICIENCY = 0.5
"""Of the link's peak that a weight sync reaches: broadcasts from few sources to many, not measured for a kind as yet."""

VALUE_MODELS = frozenset(("critic", "reward"))
"""Models that give one value per token, or per response, instead of logits: frameworks put a head of one output on them."""


@dataclass(frozen=True)
class Prices:
    """What the model-stages of an outline take on the devices that it has."""

    outline: Outline
    models: Mapping[str, HfModel]
    learnt: Learnt
    """What was measured, by accelerator kind and role; others start from what ships with the kind."""
    largest_node: int = 0
    """Devices between which the fast links run; 0: as many as the largest node of the kind has here."""
    usual_longest: int = 0
    """The longest response that is expected, for which generation waits; 0: the longest that must fit."""
    told: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """Seconds and bytes that were told before: of a model-stage in a role, whoever holds it and however many devices there
    are. May be shared between pricers of one outline at the same lengths that have learnt the same."""

    @cached_property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """The kinds of devices in the pool: accelerator and bytes of one."""
        return tuple(dict.fromkeys((group.kind, group.memory_bytes) for group in self.outline.nodes))

    def kind_name(self, kind: int) -> str:
        """What a kind is called: the accelerator, with its memory where the pool has two sizes of it."""
        name, memory = self.kinds[kind]
        alike = [other for other, _ in self.kinds if other == name]
        return name if len(alike) == 1 else f"{name} {memory / 2**30:g}GiB"

    def usable_bytes(self, kind: int) -> float:
        """What a plan may fill on a device."""
        return self.kinds[kind][1] * (1 - self.outline.headroom)

    def groups(self, kind: int) -> tuple[Nodes, ...]:
        """The node groups of a kind."""
        return tuple(group for group in self.outline.nodes if (group.kind, group.memory_bytes) == self.kinds[kind])

    def hardware(self, kind: int) -> Hardware:
        """Nodes as large as the largest of the kind, links as slow as the slowest."""
        return self._hardware[kind]

    @cached_property
    def _hardware(self) -> tuple[Hardware, ...]:
        found = []
        for kind in range(len(self.kinds)):
            groups = self.groups(kind)
            found.append(Hardware(slowest(groups), self.largest_node or max(group.devices for group in groups)))
        return tuple(found)

    def architecture(self, holder: str) -> Architecture:
        """The model that a holder runs; those that give values have a head of one output."""
        return self._architectures[holder]

    @cached_property
    def _architectures(self) -> Mapping[str, Architecture]:
        """Equal models are one, so that what is counted for one is known for the other."""
        workflow = self.outline.workflow
        names = {holder: workflow.stage(holder).model for holder in workflow.holders}
        return {h: Architecture(self.models[name].decoder, values=int(name in VALUE_MODELS)) for h, name in names.items()}

    def model(self, kind: int, role: str) -> AcceleratorModel:
        """What prices a role on a kind."""
        return self._models[kind][role]

    @cached_property
    def _models(self) -> tuple[Mapping[str, AcceleratorModel], ...]:
        names = [name for name, _ in self.kinds]
        return tuple({role: known_of(self.learnt, (name, role)) for role in ROLES} for name in names)

    def trains(self, holder: str) -> bool:
        """Whether a holder has a model-stage that trains."""
        workflow = self.outline.workflow
        return any(workflow.stage(stage).role == TRAINING for stage in workflow.roles(holder))

    def work(self, stage: str, kind: int, run: Execution) -> Workload:
        """What a model-stage computes in one RL step, for its seconds to be learnt from."""
        return replace(self.prediction(stage, kind, run).work, repeats=self.repeats(stage))

    def sync_seconds(self, target: str, source: LayoutClass, to: LayoutClass, *, one_node: bool) -> float:
        """A weight sync: every device of the target takes its shard over its own link."""
        kind, tp, pp, ep = to
        link = LinkClass.NODE if one_node and source[0] == kind else LinkClass.NETWORK
        shard = _parameters(self.architecture(target), ep) * 2 / (tp * pp)
        return shard / (self.hardware(kind).bytes_s(link) * SYNC_EFFICIENCY)

    def memory(self, holder: str, kind: int, run: Execution) -> Mapping[Component, float]:
        """Bytes of the fullest device by component, at the longest responses."""
        roles = tuple(self.outline.workflow.stage(stage).role for stage in self.outline.workflow.roles(holder))
        key = "memory", self.architecture(holder), self.kinds[kind], roles[-1], way(run)
        if key not in self.told:
            self.told[key] = self._counted(holder, kind, run)
        found: Mapping[Component, float] = self.told[key]
        return found

    def _counted(self, holder: str, kind: int, run: Execution) -> Mapping[Component, float]:
        role, architecture, work = self.outline.workflow.stage(holder).role, self.architecture(holder), self.outline.workload
        model = self.model(kind, role)
        if role == GENERATION:
            return model.generation_memory(run, architecture, self._rollout(architecture, run, work.longest_tokens))
        fullest = replace(run, tokens=work.prompt_tokens + work.longest_tokens)
        if self.trains(holder):
            return model.training_memory(self._update(fullest), architecture)
        return model.inference_memory(fullest, architecture)

    def seconds(self, stage: str, kind: int, run: Execution) -> float:
        """Of one model-stage in one RL step."""
        one = self.outline.workflow.stage(stage)
        role = one.name if one.role == GENERATION else one.role
        key = "seconds", self.architecture(one.holder), self.kinds[kind], role, way(run), _near(run)
        if key not in self.told:
            self.told[key] = self.repeats(stage) * self._once(stage, kind, run)
        found: float = self.told[key]
        return found

    def _once(self, stage: str, kind: int, run: Execution) -> float:
        """What is expected of a `prediction`, which counts memory too: thousands of options are priced, and few chosen."""
        one = self.outline.workflow.stage(stage)
        model, architecture = self.model(kind, one.role), self.architecture(one.holder)
        if one.role == GENERATION:
            return model.seconds(generation_workload(run, architecture, self._rollout(architecture, run, self._waits_for)))
        if one.role == TRAINING:
            return model.training_seconds(self._update(run), architecture)
        return model.seconds(inference_workload(run, architecture))

    def repeats(self, stage: str) -> float:
        """How often a step does what is predicted of a model-stage: its updates; a baseline is a part of a rollout."""
        work, one = self.outline.workload, self.outline.workflow.stage(stage)
        if one.role == TRAINING:
            return work.updates_per_step
        # The baseline of ReMax is one greedy response to each prompt.
        return 1.0 / work.samples_per_prompt if one.role == GENERATION and one.holder != stage else 1.0

    def prediction(self, stage: str, kind: int, run: Execution) -> Prediction:
        """What a model-stage takes: generation and inference of all sequences, one of the step's updates."""
        one = self.outline.workflow.stage(stage)
        model, architecture = self.model(kind, one.role), self.architecture(one.holder)
        if one.role == GENERATION:
            return model.generation(run, architecture, self._rollout(architecture, run, self._waits_for))
        if one.role == TRAINING:
            return model.training(self._update(run), architecture)
        return model.inference(run, architecture)

    def _update(self, run: Execution) -> Execution:
        """One of the step's updates."""
        return replace(run, sequences=run.sequences / self.outline.workload.updates_per_step)

    @property
    def _waits_for(self) -> int:
        """The longest response of a rollout."""
        return self.usual_longest or self.outline.workload.longest_tokens

    def _rollout(self, architecture: Architecture, run: Execution, longest: int) -> Rollout:
        """Room for as many sequences as `run` has at a time, at their mean length: engines evict and admit one by one."""
        work = self.outline.workload
        tokens = architecture.context(work.prompt_tokens + work.response_tokens)
        return Rollout(
            sequences=work.global_batch,
            prompt_tokens=work.prompt_tokens,
            response_tokens=work.response_tokens,
            longest_tokens=longest,
            kv_bytes=kv_token_bytes(run, architecture, run.item_bytes) * tokens * run.micro_batch,
            kv_item_bytes=run.item_bytes,
            reserves=True,
        )


def way(run: Execution) -> tuple[Hashable, ...]:
    """What tells two ways to run one holder of an outline on one kind apart, wherever its devices lie."""
    return run.tp, run.pp, run.ep, run.dp, run.micro_batch, run.recompute, run.zero1, run.offload


def _near(run: Execution) -> tuple[Hashable, ...]:
    """The links that it has: seconds depend on them, bytes do not."""
    return run.hardware.devices_per_node, run.hardware.accelerator.host_bytes_s


def _parameters(architecture: Architecture, ep: int) -> float:
    """Of one EP rank."""
    ends = 1 if architecture.decoder.tied else 2
    return architecture.decoder.num_layers * architecture.layer_parameters(1, ep) + ends * architecture.end_parameters(1)
