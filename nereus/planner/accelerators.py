"""The candidates of an outline on accelerators: every legal way to run each holder of devices, priced by the cost model.

    Outline, models -> Pricer.candidates(holder) -> rows -> Problem -> solve        tables.problem_of_outline

Latency is that of mean lengths, memory that of the longest. What stays on a device while a holder is idle is apart from what
lives only while it computes, since holders may share devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.components import Component, offloaded_bytes
from nereus.cost.execution import MEGATRON, PLAIN, Execution, Offload, Recompute
from nereus.cost.generation import Rollout, kv_token_bytes
from nereus.cost.layer import Architecture
from nereus.cost.priors import shipped
from nereus.planner.degrees import Degrees
from nereus.spec.hardware import ACCELERATORS, Hardware
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Nodes, Outline
from nereus.spec.workflow import GENERATION, TRAINING

REGIMES = {"plain": PLAIN, "megatron": MEGATRON}

STAYS = frozenset((Component.PARAMETERS, Component.OPTIMIZER))
"""What an idle holder keeps; gradients and activations are gone at the end of its stage (paper, section 4.3)."""


VALUE_MODELS = frozenset(("critic", "reward"))
"""Models that give one value per token, or per response, instead of logits: frameworks put a head of one output on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run a holder of devices, and what it costs."""

    holder: str
    kind: int
    """Of its devices, as a place in the pricer's kinds."""
    run: Execution
    """How it runs; of a generation replica, `micro_batch` is how many sequences generate at the same time. Its nodes are as
    large as the quantum, where that decides which devices are neighbours."""
    quantum: int
    """In each node its devices are a multiple of it."""
    seconds: Mapping[str, float]
    """By model-stage that runs on it: of one RL step."""
    memory: Mapping[Component, float]
    """Bytes of the fullest device by component, at the longest responses."""
    host_bytes: int = 0
    """For each device, in the memory of its node's host."""
    pinned: bool = False
    """Whether the outline settles something about the holder."""

    @property
    def num_devices(self) -> int:
        return self.run.devices

    @property
    def layout(self) -> tuple[int, int, int, int]:
        """Device kind, tp, pp and ep."""
        return self.kind, self.run.tp, self.run.pp, self.run.ep

    @property
    def resident_bytes(self) -> float:
        """On each device, also while it is idle."""
        return sum(size for part, size in self.memory.items() if self._stays(part))

    @property
    def active_bytes(self) -> float:
        """On top while it computes."""
        return sum(size for part, size in self.memory.items() if not self._stays(part))

    def _stays(self, part: Component) -> bool:
        comes = part is Component.PARAMETERS and self.run.offload is Offload.PARAMETERS
        return part in STAYS and not comes

    @property
    def recomputes(self) -> bool:
        """Whether the backward computes whole layers again."""
        return self.run.recompute is Recompute.FULL

    def __str__(self) -> str:
        offloads = self.run.offload is not Offload.NONE
        extras = (" recompute", self.recomputes), (" zero1", self.run.zero1), (f" offload {self.run.offload}", offloads)
        extra = "".join(text for text, is_on in extras if is_on)
        pinned = " (pinned)" if self.pinned else ""
        experts = f" ep{self.run.ep}" if self.run.ep > 1 else ""
        return f"tp{self.run.tp} pp{self.run.pp}{experts} dp{self.run.dp} mb{self.run.micro_batch}{extra}{pinned}"


@dataclass(frozen=True)
class Pricer:
    """Prices what an outline can do on the devices that it has."""

    outline: Outline
    models: Mapping[str, HfModel]
    learnt: Mapping[str, AcceleratorModel]
    """What was measured, by accelerator kind; others start from what ships with the kind."""
    across: bool = False
    """Whether TP over several nodes is offered to every holder, not only to those that fit in no other way."""

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
        runs = (self._runs(holder, kind, across=across) for kind in range(len(self.kinds)) for across in (False, True))
        return any(True for ways in runs for _ in ways)

    def options(self, holder: str) -> tuple[Option, ...]:
        """All options of a holder, on every kind that has the devices for them."""
        inside = self._offered(holder, across=False)
        return inside if inside and not self.across else (*inside, *self._offered(holder, across=True))

    def usable_bytes(self, kind: int) -> float:
        """What a plan may fill on a device."""
        return self.kinds[kind][1] * (1 - self.outline.headroom)

    def groups(self, kind: int) -> tuple[Nodes, ...]:
        """The node groups of a kind."""
        return tuple(group for group in self.outline.nodes if (group.kind, group.memory_bytes) == self.kinds[kind])

    def hardware(self, kind: int) -> Hardware:
        """Nodes as large as the largest of the kind, hosts as near as the farthest."""
        name, memory = self.kinds[kind]
        known = ACCELERATORS[name]
        host = min(group.host_bytes_s or known.host_bytes_s for group in self.groups(kind))
        accelerator = replace(known, memory_bytes=memory, host_bytes_s=host)
        return Hardware(accelerator, max(group.devices for group in self.groups(kind)))

    def architecture(self, holder: str) -> Architecture:
        """The model that a holder runs; those that give values have a head of one output."""
        model = self.outline.workflow.stage(holder).model
        return Architecture(self.models[model].decoder, values=int(model in VALUE_MODELS))

    def priced(self, holder: str, kind: int, run: Execution) -> Option | None:
        """An option with its costs, TP groups inside nodes; None where it does not fit on a device by itself."""
        memory = self._memory(holder, kind, run)
        return self._option(holder, kind, run, run.tp, memory) if self._fits(kind, memory) else None

    def _fits(self, kind: int, memory: Mapping[Component, float]) -> bool:
        return sum(memory.values()) <= self.usable_bytes(kind)

    def _option(self, holder: str, kind: int, run: Execution, quantum: int, memory: Mapping[Component, float]) -> Option:
        seconds = {stage: self._seconds(stage, kind, run) for stage in self.outline.workflow.roles(holder)}
        return Option(
            holder=holder,
            kind=kind,
            run=run,
            quantum=quantum,
            seconds=seconds,
            memory=memory,
            host_bytes=ceil(offloaded_bytes(run, self.architecture(holder))),
            pinned=holder in self.outline.pins,
        )

    def at_lengths(self, option: Option) -> Option:
        """An option with the memory that it takes at this outline's lengths, whether that fits or not."""
        return replace(option, memory=self._memory(option.holder, option.kind, option.run))

    def _offered(self, holder: str, *, across: bool) -> tuple[Option, ...]:
        """What fits, with TP inside nodes or over several."""
        found = []
        for kind in range(len(self.kinds)):
            for run, degrees in self._runs(holder, kind, across=across):
                memory = self._memory(holder, kind, run)
                if self._fits(kind, memory):
                    quanta = degrees.quanta(run)
                    found += [self._option(holder, kind, held, quantum, memory) for quantum, held in quanta]
        return tuple(found)

    def _runs(self, holder: str, kind: int, *, across: bool) -> Iterator[tuple[Execution, Degrees]]:
        """Every way to run a holder on a kind, whatever memory it takes."""
        degrees = Degrees(
            decoder=self.architecture(holder).decoder,
            groups=self.groups(kind),
            workload=self.outline.workload,
            micro_batches=self.outline.micro_batches,
            trains=self._trains(holder),
            generates=self.outline.workflow.stage(holder).role == GENERATION,
            pin=self.outline.pin(holder),
            across=across,
        )
        for tp, pp, dp, ep in degrees.degrees():
            run = self._run(holder, kind, tp, pp, dp, ep)
            run = replace(run, zero1=degrees.zero1(run.shares))
            for way in degrees.ways(run):
                yield way, degrees

    def _run(self, holder: str, kind: int, tp: int, pp: int, dp: int, ep: int = 1) -> Execution:
        """A holder with these degrees, on mean lengths."""
        return Execution(
            hardware=self.hardware(kind),
            tp=tp,
            pp=pp,
            dp=dp,
            ep=ep,
            sequences=self.outline.workload.global_batch,
            tokens=self.outline.workload.prompt_tokens + self.outline.workload.response_tokens,
            sequence_parallel=self.outline.sequence_parallel and tp > 1,
            zero1=dp * ep > 1 and self._trains(holder),
            regime=REGIMES[self.outline.framework],
        )

    def _trains(self, holder: str) -> bool:
        workflow = self.outline.workflow
        return any(workflow.stage(stage).role == TRAINING for stage in workflow.roles(holder))

    def _model(self, kind: int) -> AcceleratorModel:
        name = self.kinds[kind][0]
        return self.learnt.get(name) or AcceleratorModel(shipped(name))

    def _update(self, run: Execution) -> Execution:
        """One of the step's updates."""
        return replace(run, sequences=run.sequences / self.outline.workload.updates_per_step)

    def _memory(self, holder: str, kind: int, run: Execution) -> Mapping[Component, float]:
        model, architecture, work = self._model(kind), self.architecture(holder), self.outline.workload
        if self.outline.workflow.stage(holder).role == GENERATION:
            return model.generation_memory(run, architecture, self._rollout(architecture, run))
        fullest = replace(run, tokens=work.prompt_tokens + work.longest_tokens)
        if self._trains(holder):
            return model.training_memory(self._update(fullest), architecture)
        return model.inference_memory(fullest, architecture)

    def _seconds(self, stage: str, kind: int, run: Execution) -> float:
        """Of one model-stage in one RL step."""
        workflow, model, work = self.outline.workflow, self._model(kind), self.outline.workload
        holder, role = workflow.stage(stage).holder, workflow.stage(stage).role
        architecture = self.architecture(holder)
        if role == GENERATION:
            # The baseline of ReMax is one greedy response to each prompt.
            share = 1.0 if stage == holder else 1.0 / work.samples_per_prompt
            return share * model.generation(run, architecture, self._rollout(architecture, run)).seconds
        if role == TRAINING:
            return work.updates_per_step * model.training(self._update(run), architecture).expected_s
        return model.inference(run, architecture).seconds

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
