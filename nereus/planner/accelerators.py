"""The candidates of an outline on accelerators: every legal way to run each holder of devices, priced by the cost model.

    Outline, models -> Pricer.candidates(holder) -> rows -> Problem -> solve        tables.problem_of_outline

Latency is that of mean lengths, memory that of the longest. What stays on a device while a holder is idle is apart from what
lives only while it computes, since holders may share devices.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, TypeAlias

from nereus.cost.accelerator import AcceleratorModel, Learnt, Prediction
from nereus.cost.components import Component
from nereus.cost.execution import MEGATRON, PLAIN, Execution, Recompute
from nereus.cost.generation import Rollout, kv_token_bytes
from nereus.cost.layer import Architecture
from nereus.cost.priors import known_of
from nereus.cost.volume import Workload
from nereus.emu.plan import StagePlan
from nereus.spec.decoder import tp_degrees
from nereus.spec.hardware import ACCELERATORS, Hardware, LinkClass
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Nodes, Outline
from nereus.spec.stages import ROLES
from nereus.spec.workflow import GENERATION, TRAINING

REGIMES = {"plain": PLAIN, "megatron": MEGATRON}

STAYS = frozenset((Component.PARAMETERS, Component.OPTIMIZER))
"""What an idle holder keeps; gradients and activations are gone at the end of its stage (paper, section 4.3)."""

SYNC_EFFICIENCY = 0.5
"""Of the link's peak that a weight sync reaches: broadcasts from few sources to many, not measured for a kind as yet."""

LayoutClass: TypeAlias = tuple[int, int, int]
"""Device kind, tp and pp."""

WAVES = (1, 2, 4, 8, 16, 32)
"""Waves in which a generation replica may work through its sequences: more waves take less KV memory. A ladder in absolute
sequences, so that more memory never makes a plan slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run a holder of devices, and what it costs."""

    holder: str
    kind: int
    """Of its devices, as a place in the pricer's kinds."""
    run: Execution
    """How it runs; of a generation replica, `micro_batch` is how many sequences generate at the same time."""
    seconds: Mapping[str, float]
    """By model-stage that runs on it: of one RL step."""
    memory: Mapping[Component, float]
    """Bytes of the fullest device by component, at the longest responses."""

    @property
    def num_devices(self) -> int:
        return self.run.devices

    @property
    def layout(self) -> tuple[int, int, int]:
        """Device kind, tp and pp."""
        return self.kind, self.run.tp, self.run.pp

    @property
    def resident_bytes(self) -> float:
        """On each device, also while it is idle."""
        return sum(size for part, size in self.memory.items() if part in STAYS)

    @property
    def active_bytes(self) -> float:
        """On top while it computes."""
        return sum(size for part, size in self.memory.items() if part not in STAYS)

    @property
    def recomputes(self) -> bool:
        """Whether the backward computes whole layers again."""
        return self.run.recompute is Recompute.FULL

    @property
    def choice(self) -> dict[str, int | bool]:
        """How it runs, in the words of a plan file."""
        run = self.run
        degrees = {"tp": run.tp, "pp": run.pp, "dp": run.dp, "micro_batch": run.micro_batch}
        return {**degrees, "recompute": self.recomputes, "zero1": run.zero1}

    def __str__(self) -> str:
        extra = "".join(text for text, is_on in ((" recompute", self.recomputes), (" zero1", self.run.zero1)) if is_on)
        return f"tp{self.run.tp} pp{self.run.pp} dp{self.run.dp} mb{self.run.micro_batch}{extra}"


@dataclass(frozen=True)
class Pricer:
    """Prices what an outline can do on the devices that it has."""

    outline: Outline
    models: Mapping[str, HfModel]
    learnt: Learnt
    """What was measured, by accelerator kind and role; others start from what ships with the kind."""
    largest_node: int = 0
    """Devices between which the fast links run; 0: as many as the largest node of the kind has here."""
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

    def can_be_cut(self, holder: str) -> bool:
        """Whether any DP degree and micro-batch divides the sequences of a holder, whatever the memory."""
        runs = (
            (self._run(holder, kind, *degrees)) for kind in range(len(self.kinds)) for degrees in self._degrees(holder, kind)
        )
        return any(True for run in runs for _ in self._ways(holder, run))

    def options(self, holder: str) -> tuple[Option, ...]:
        """All options of a holder, on every kind that has the devices for them."""
        return tuple(option for kind in range(len(self.kinds)) for option in self._on_kind(holder, kind))

    def usable_bytes(self, kind: int) -> float:
        """What a plan may fill on a device."""
        return self.kinds[kind][1] * (1 - self.outline.headroom)

    def groups(self, kind: int) -> tuple[Nodes, ...]:
        """The node groups of a kind."""
        return tuple(group for group in self.outline.nodes if (group.kind, group.memory_bytes) == self.kinds[kind])

    def hardware(self, kind: int) -> Hardware:
        """Nodes as large as the largest of the kind."""
        name, memory = self.kinds[kind]
        accelerator = replace(ACCELERATORS[name], memory_bytes=memory)
        return Hardware(accelerator, self.largest_node or max(group.devices for group in self.groups(kind)))

    def architecture(self, holder: str) -> Architecture:
        """The model that a holder runs."""
        return self._architectures[holder]

    @cached_property
    def _architectures(self) -> Mapping[str, Architecture]:
        """Equal models are one, so that what is counted for one is known for the other."""
        workflow = self.outline.workflow
        return {holder: Architecture(self.models[workflow.stage(holder).model].decoder) for holder in workflow.holders}

    def priced(self, holder: str, kind: int, run: Execution) -> Option | None:
        """An option with its costs; None where it does not fit on a device by itself."""
        memory = self._memory(holder, kind, run)
        if sum(memory.values()) > self.usable_bytes(kind):
            return None
        seconds = {stage: self._seconds(stage, kind, run) for stage in self.outline.workflow.roles(holder)}
        return Option(holder=holder, kind=kind, run=run, seconds=seconds, memory=memory)

    def of_plan(self, holder: str, kind: int, plan: StagePlan) -> Option:
        """A stage plan with its costs, whether it fits or not."""
        run = self.planned(holder, kind, plan)
        seconds = {stage: self._seconds(stage, kind, run) for stage in self.outline.workflow.roles(holder)}
        return Option(holder=holder, kind=kind, run=run, seconds=seconds, memory=self._memory(holder, kind, run))

    def planned(self, holder: str, kind: int, plan: StagePlan) -> Execution:
        """How a stage plan runs."""
        run = self._run(holder, kind, plan.layout.tp, plan.layout.pp, plan.dp)
        recompute = Recompute.FULL if plan.recompute else Recompute.NONE
        return replace(run, micro_batch=plan.micro_batch, zero1=plan.zero1, recompute=recompute)

    def work(self, stage: str, kind: int, run: Execution) -> Workload:
        """What a model-stage computes in one RL step, for its seconds to be learnt from."""
        return replace(self.prediction(stage, kind, run).work, repeats=self.repeats(stage))

    def sync_seconds(self, target: str, source: LayoutClass, to: LayoutClass, *, one_node: bool) -> float:
        """A weight sync: every device of the target takes its shard over its own link."""
        kind, tp, pp = to
        link = LinkClass.NODE if one_node and source[0] == kind else LinkClass.NETWORK
        shard = _parameters(self.architecture(target)) * 2 / (tp * pp)
        return shard / (self.hardware(kind).bytes_s(link) * SYNC_EFFICIENCY)

    def at_lengths(self, option: Option) -> Option:
        """An option with the memory that it takes at this outline's lengths, whether that fits or not."""
        return replace(option, memory=self._memory(option.holder, option.kind, option.run))

    def _on_kind(self, holder: str, kind: int) -> Iterator[Option]:
        for tp, pp, dp in self._degrees(holder, kind):
            for way in self._ways(holder, self._run(holder, kind, tp, pp, dp)):
                option = self.priced(holder, kind, way)
                if option is not None:
                    yield option

    def _run(self, holder: str, kind: int, tp: int, pp: int, dp: int) -> Execution:
        """A holder with these degrees, on mean lengths."""
        return Execution(
            hardware=self.hardware(kind),
            tp=tp,
            pp=pp,
            dp=dp,
            sequences=self.outline.workload.global_batch,
            tokens=self.outline.workload.prompt_tokens + self.outline.workload.response_tokens,
            sequence_parallel=self.outline.sequence_parallel and tp > 1,
            zero1=dp > 1 and self._trains(holder),
            regime=REGIMES[self.outline.framework],
        )

    def _trains(self, holder: str) -> bool:
        workflow = self.outline.workflow
        return any(workflow.stage(stage).role == TRAINING for stage in workflow.roles(holder))

    def _ways(self, holder: str, run: Execution) -> Iterator[Execution]:
        """Micro-batches and recomputation; of generation, how many sequences at a time."""
        trains = self._trains(holder)
        if self.outline.workflow.stage(holder).role == GENERATION:
            most = ceil(run.sequences / run.dp)
            for together in sorted({max(1, most // waves) for waves in WAVES}, reverse=True):
                yield replace(run, micro_batch=together)
            return
        rows = run.sequences / run.dp / (self.outline.workload.updates_per_step if trains else 1)
        for micro_batch in self.outline.micro_batches:
            if rows % micro_batch == 0 and rows >= micro_batch:
                for recompute in (Recompute.NONE, Recompute.FULL) if trains else (Recompute.NONE,):
                    yield replace(run, micro_batch=micro_batch, recompute=recompute)

    def _degrees(self, holder: str, kind: int) -> Iterator[tuple[int, int, int]]:
        """Powers of two for TP inside a node and for PP; DP in powers of two, three times them, and as many as there are."""
        decoder, groups = self.architecture(holder).decoder, self.groups(kind)
        node = max(group.devices for group in groups)
        for tp in (degree for degree in tp_degrees(decoder, node) if degree & (degree - 1) == 0):
            room = sum(g.count * (g.devices // tp) for g in groups)
            pp = 1
            while pp <= min(decoder.num_layers, room):
                most = min(room // pp, self.outline.workload.global_batch)
                yield from ((tp, pp, dp) for dp in range(1, most + 1) if dp == most or _is_round(dp))
                pp *= 2

    def model(self, kind: int, role: str) -> AcceleratorModel:
        """What prices a role on a kind."""
        return self._models[kind][role]

    @cached_property
    def _models(self) -> tuple[Mapping[str, AcceleratorModel], ...]:
        names = [name for name, _ in self.kinds]
        return tuple({role: known_of(self.learnt, (name, role)) for role in ROLES} for name in names)

    def _update(self, run: Execution) -> Execution:
        """One of the step's updates."""
        return replace(run, sequences=run.sequences / self.outline.workload.updates_per_step)

    def _memory(self, holder: str, kind: int, run: Execution) -> Mapping[Component, float]:
        roles = tuple(self.outline.workflow.stage(stage).role for stage in self.outline.workflow.roles(holder))
        key = "memory", self.architecture(holder).decoder, self.kinds[kind], roles[-1], _way(run)
        if key not in self.told:
            self.told[key] = self._counted(holder, kind, run)
        found: Mapping[Component, float] = self.told[key]
        return found

    def _counted(self, holder: str, kind: int, run: Execution) -> Mapping[Component, float]:
        role, architecture, work = self.outline.workflow.stage(holder).role, self.architecture(holder), self.outline.workload
        model = self.model(kind, role)
        if role == GENERATION:
            return model.generation(run, architecture, self._rollout(architecture, run)).memory
        fullest = replace(run, tokens=work.prompt_tokens + work.longest_tokens)
        if self._trains(holder):
            return model.training_memory(self._update(fullest), architecture)
        return model.inference_memory(fullest, architecture)

    def _seconds(self, stage: str, kind: int, run: Execution) -> float:
        """Of one model-stage in one RL step."""
        one = self.outline.workflow.stage(stage)
        role = one.name if one.role == GENERATION else one.role
        key = "seconds", self.architecture(one.holder).decoder, self.kinds[kind], role, _way(run)
        if key not in self.told:
            self.told[key] = self.repeats(stage) * self.prediction(stage, kind, run).expected_s
        found: float = self.told[key]
        return found

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
            return model.generation(run, architecture, self._rollout(architecture, run))
        if one.role == TRAINING:
            return model.training(self._update(run), architecture)
        return model.inference(run, architecture)

    def _rollout(self, architecture: Architecture, run: Execution) -> Rollout:
        """Room for as many sequences as `run` has at a time, at their mean length: engines evict and admit one by one."""
        work = self.outline.workload
        tokens = architecture.context(work.prompt_tokens + work.response_tokens)
        return Rollout(
            sequences=work.global_batch,
            prompt_tokens=work.prompt_tokens,
            response_tokens=work.response_tokens,
            longest_tokens=work.longest_tokens,
            kv_bytes=kv_token_bytes(run, architecture, run.item_bytes) * tokens * run.micro_batch,
            kv_item_bytes=run.item_bytes,
            reserves=True,
        )


def _way(run: Execution) -> tuple[Hashable, ...]:
    """What tells two ways to run one holder on one kind apart."""
    return run.tp, run.pp, run.dp, run.micro_batch, run.recompute, run.zero1


def _parameters(architecture: Architecture) -> float:
    ends = 1 if architecture.decoder.tied else 2
    return architecture.decoder.num_layers * architecture.layer_parameters(1) + ends * architecture.end_parameters(1)


def _is_round(degree: int) -> bool:
    """A power of two, or three times one."""
    part = degree // 3 if degree % 3 == 0 else degree
    return part & (part - 1) == 0
