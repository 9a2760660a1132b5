"""The pricing of an outline: any framework's job on accelerators, as policy and control ask for it.

    Outline at lengths, on the pool that is there -> OutlinePlanner -> Target
    stage times of a step -> Workload and seconds, in a window -> efficiencies by accelerator kind, fitted when next asked

A step is remembered when it is told and learnt from when a plan is next priced: most steps trigger nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, product
from math import ceil, floor
from typing import Any

from nereus.cost.accelerator import Key, Learnt
from nereus.cost.overlap import Timings, overlap
from nereus.cost.volume import Workload
from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.layout.layout import Layout
from nereus.planner.accelerators import Pricer
from nereus.planner.experience import Experience, Seen, achieved, assumed
from nereus.planner.options import Option
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.posed import PlannedStep
from nereus.planner.pricing import Devices, Lengths, Target
from nereus.planner.rules import NOT_YET, Rules
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Nodes, Outline
from nereus.spec.pins import Pin

UNMEASURED_SCALE = 1.2
"""Of peaks before one was measured, over counted ones: what 99 of 100 runs of the public H100 sweep that fill half of a
device or more stay below (docs/benchmarks.md). What was never seen starts with conservative values (paper, section 4.2): a
first step that runs out of memory costs a restart, and one step is enough to learn by how much counts are off."""

SCALE_WEIGHT = 0.005
"""Weight of a peak that was lower than the ones before: 140 steps halfway back. Faster, and a job would go back and forth
between a plan that is fuller than counted and one that is not."""

ADAPTABLE = Rules(NOT_YET)
"""What a plan of a job that adapts keeps: no stage plan says more."""

MOST_COUNTED = 1024
"""Plans at lengths whose bytes are kept: a replan asks for a dozen, a steady job for the same one at each step."""

MOST_WORKS = 4096
"""Works of model-stages that are kept: a window of steps has a few hundred."""


@dataclass(frozen=True, kw_only=True)
class OutlinePricing:
    """Prices the plans of an outline. Device numbers count node by node, as the outline lists its nodes."""

    outline: Outline
    models: Mapping[str, HfModel]
    known: Learnt = field(default_factory=dict)
    """What earlier runs have taught, by accelerator kind and role; others start from what ships with the kind."""
    experience: Experience = field(default_factory=Experience)
    """The last steps, and what was fitted on them."""
    memory_scale: float = UNMEASURED_SCALE
    """Measured over predicted peaks (paper, section 4.2: measured peaks calibrate footprints)."""
    works: dict[tuple[str, StagePlan, Lengths], Workload] = field(default_factory=dict, compare=False, repr=False)
    """What model-stages of steps that were seen computed; the same for all pricings that come of this one."""
    counted: dict[tuple[tuple[StagePlan, ...], Lengths], Mapping[DeviceId, float]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Bytes of every device of plans that were counted before, likewise."""
    footprints: dict[tuple[StagePlan, tuple[str, int], Lengths], tuple[float, float]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """What was counted before: the same for all pricings that come of this one."""
    planners: dict[tuple[tuple[DeviceId, ...], Lengths], OutlinePlanner] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Whose options were priced before, by pool and lengths; of this pricing only, since efficiencies differ."""
    told: dict[Lengths, dict[Hashable, Any]] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What their pricers have told, for pools of other sizes."""

    @cached_property
    def usable_bytes(self) -> float:
        """Of the smallest device of the pool, less headroom."""
        return min(group.memory_bytes for group in self.outline.nodes) * (1 - self.outline.headroom)

    @property
    def apart(self) -> frozenset[frozenset[str]]:
        """Asynchronously, generation and what runs beside it."""
        return frozenset(frozenset(pair) for pair in self.outline.workflow.apart())

    def timed(self, flops_s: float | None) -> OutlinePricing:
        """Accelerators have datasheets."""
        return self

    def lengths(self, mean: float, steps: range) -> Lengths:
        """The longest response grows with the mean, as it was seen to; before the first step, what the outline expects."""
        work = self.outline.workload
        return self.experience.lengths(mean or work.response_tokens, work.longest_tokens / work.response_tokens)

    def search(self, pool: Devices, lengths: Lengths, top: int, like: Plan | None = None) -> tuple[Target, ...]:
        """See Pricing."""
        at = lengths.on_grid
        if (pool.ids, at) not in self.planners:
            nodes = self._nodes(pool, self.memory_scale)
            self.planners[pool.ids, at] = OutlinePlanner(
                outline=self._at(at, nodes).model_copy(update={"pins": self._pins(pool)}),
                models=self.models,
                learnt=self._learnt,
                rules=ADAPTABLE,
                largest_node=self._largest_node,
                usual_longest=round(at.usual),
                told=self.told.setdefault(at, {}),
            )
        planner = self.planners[pool.ids, at]
        if like is not None:
            shapes = {name: (p.layout.tp, p.layout.pp, p.layout.ep, p.dp) for name, p in like.stages.items()}
            planner = replace(planner, shapes=shapes, tables=planner.priced)
        return tuple(_target(step, self.memory_scale) for step in planner.best(top)[0])

    def step_seconds(self, plan: Plan, lengths: Lengths) -> float:
        """See Pricing."""
        pricer, workflow = self._pricer(lengths.on_grid), self.outline.workflow
        options = self._options(plan, pricer)
        used = {name: frozenset(stage.devices) for name, stage in plan.stages.items()}
        node, syncs = node_of(self.outline), {}
        for sync in workflow.syncs:
            ends = options[sync.source].layout, options[sync.target].layout
            one_node = len(set(node.values())) == 1
            syncs[sync.source, sync.target] = pricer.sync_seconds(sync.target, *ends, one_node=one_node)
        return overlap(workflow, used, Timings(_by_stage(options), syncs)).seconds

    def holder_seconds(self, plan: Plan, lengths: Lengths) -> Mapping[str, float]:
        """See Pricing."""
        options = self._options(plan, self._pricer(lengths.on_grid))
        return {name: sum(option.seconds.values()) for name, option in options.items()}

    def peaks(self, plan: Plan, lengths: Lengths) -> Mapping[DeviceId, int]:
        """See Pricing."""
        counted = self._counted(tuple(plan.stages.values()), replace(lengths.on_grid, usual=0.0))
        return {device: ceil(self.memory_scale * held) for device, held in counted.items()}

    def _counted(self, stages: tuple[StagePlan, ...], at: Lengths) -> Mapping[DeviceId, float]:
        """Bytes of every device as they are counted."""
        if (stages, at) not in self.counted:
            resident: dict[DeviceId, float] = {}
            active: dict[DeviceId, float] = {}
            for stage in stages:
                stays, lives = self._footprint(stage, at)
                for device in stage.devices:
                    resident[device] = resident.get(device, 0.0) + stays
                    active[device] = max(active.get(device, 0.0), lives)
            if len(self.counted) >= MOST_COUNTED:
                self.counted.clear()
            self.counted[stages, at] = {d: resident[d] + active[d] for d in sorted(resident)}
        return self.counted[stages, at]

    def _footprint(self, plan: StagePlan, lengths: Lengths) -> tuple[float, float]:
        """Bytes on each device of a holder, idle and on top while it is active."""
        group = self._group_of[plan.devices[0]]
        key = replace(plan, devices=tuple(range(len(plan.devices)))), (group.kind, group.memory_bytes), lengths
        if key not in self.footprints:
            pricer = self._unlearnt(lengths)
            option = pricer.of_plan(plan.stage, self._kind(pricer, plan), plan)
            self.footprints[key] = option.resident_bytes, option.active_bytes
        return self.footprints[key]

    def efficiencies(self) -> Mapping[str, float]:
        """See Pricing: those of the last look."""
        return achieved(self.experience.looked)

    def assumed(self) -> Mapping[str, float]:
        """See Pricing."""
        kinds = dict.fromkeys(group.kind for group in self.outline.nodes)
        roles = dict.fromkeys(stage.role for stage in self.outline.workflow.stages)
        return assumed(self.known, product(kinds, roles))

    def spent(self) -> Mapping[str, float]:
        """See Pricing: by the efficiencies of the last look."""
        return self.experience.spent(self._worked)

    def learn(self, plan: Plan, lengths: Lengths, stage_s: Mapping[str, float], peak_bytes: int) -> OutlinePricing:
        """See Pricing."""
        scale = self._scale_after(plan, lengths, peak_bytes)
        if not stage_s:
            return replace(self, memory_scale=scale)
        stages = {name: seconds for name, seconds in stage_s.items() if seconds > 0 and name in self._stage_names}
        seen = self.experience.after(Seen(plan, lengths, stages), self.known, self._worked)
        return replace(self, experience=seen, memory_scale=scale)

    def _worked(self, stage: str, one: Seen) -> tuple[Key, Workload]:
        """The kind and role of a model-stage of a step that was seen, and what it computed."""
        modelled = self.outline.workflow.stage(stage)
        kind = self._group_of[one.plan.stages[modelled.holder].devices[0]].kind
        return (kind, modelled.role), self._work(stage, one.plan, one.lengths)

    def _work(self, stage: str, plan: Plan, lengths: Lengths) -> Workload:
        """What a model-stage computed."""
        holder = plan.stages[self.outline.workflow.stage(stage).holder]
        key = stage, holder, lengths
        if key not in self.works:
            if len(self.works) >= MOST_WORKS:
                self.works.clear()
            pricer = self._unlearnt(lengths)
            kind = self._kind(pricer, holder)
            self.works[key] = pricer.work(stage, kind, pricer.planned(holder.stage, kind, holder))
        return self.works[key]

    def _scale_after(self, plan: Plan, lengths: Lengths, peak_bytes: int) -> float:
        """What was taken over what was predicted: up at once, down slowly, since one peak says little of other plans."""
        if not peak_bytes:
            return self.memory_scale
        ratio = self.memory_scale * peak_bytes / max(self.peaks(plan, lengths).values())
        if not self.experience.steps:
            return ratio
        return max(ratio, self.memory_scale + SCALE_WEIGHT * (ratio - self.memory_scale))

    @cached_property
    def _learnt(self) -> Learnt:
        return self.experience.fitted(self.known, self._worked)

    def _pricer(self, lengths: Lengths) -> Pricer:
        return self._pricer_of(lengths, self._learnt)

    def _unlearnt(self, lengths: Lengths) -> Pricer:
        return self._pricer_of(lengths, self.known)

    def _pricer_of(self, lengths: Lengths, learnt: Learnt) -> Pricer:
        now = self._at(lengths, self.outline.nodes)
        return Pricer(now, self.models, learnt, self._largest_node, round(lengths.usual))

    def _options(self, plan: Plan, pricer: Pricer) -> dict[str, Option]:
        return {name: pricer.of_plan(name, self._kind(pricer, stage), stage) for name, stage in plan.stages.items()}

    def _kind(self, pricer: Pricer, plan: StagePlan) -> int:
        group = self._group_of[plan.devices[0]]
        return pricer.kinds.index((group.kind, group.memory_bytes))

    def _at(self, lengths: Lengths, nodes: tuple[Nodes, ...]) -> Outline:
        """The outline with these responses, on these nodes."""
        update = {
            "response_tokens": max(1, round(lengths.mean)),
            "longest_response_tokens": max(1, round(lengths.mean), ceil(lengths.longest)),
        }
        workload = self.outline.workload.model_copy(update=update)
        return self.outline.model_copy(update={"workload": workload, "nodes": nodes})

    def _nodes(self, pool: Devices, scale: float) -> tuple[Nodes, ...]:
        """The nodes that are there, neighbours that are alike in one group: positions count as in the pool.

        Where plans take `scale` times what is counted, a device holds so many times less.
        """
        there = ((self._group_of[devices[0]], len(devices)) for devices in pool.nodes.values())
        found = []
        for (group, size), alike in groupby(there):
            held = {"memory": floor(group.memory_bytes / scale), "count": len(list(alike)), "devices": size}
            found.append(group.model_copy(update={**held, "host_memory": None}))
        return tuple(found)

    def _pins(self, pool: Devices) -> dict[str, Pin]:
        """The pins with devices counted as in the pool: one that has left is none that a plan can have."""
        places = {device: place for place, device in enumerate(pool.ids)}
        found = {}
        for name, pin in self.outline.pins.items():
            devices = tuple(places.get(device, len(places) + device) for device in pin.devices or ())
            found[name] = pin.model_copy(update={"devices": devices}) if devices else pin
        return found

    @cached_property
    def _group_of(self) -> tuple[Nodes, ...]:
        """The node group of each device."""
        return tuple(group for group in self.outline.nodes for _ in range(group.count * group.devices))

    @cached_property
    def _largest_node(self) -> int:
        return max(group.devices for group in self.outline.nodes)

    @cached_property
    def _stage_names(self) -> frozenset[str]:
        return frozenset(stage.name for stage in self.outline.workflow.stages)


def _by_stage(options: Mapping[str, Option]) -> dict[str, float]:
    return {stage: seconds for option in options.values() for stage, seconds in option.seconds.items()}


def node_of(outline: Outline) -> dict[DeviceId, int]:
    """The node of every device of an outline, counted as its nodes are listed."""
    sizes = [group.devices for group in outline.nodes for _ in range(group.count)]
    return dict(enumerate(node for node, size in enumerate(sizes) for _ in range(size)))


def _target(step: PlannedStep, scale: float) -> Target:
    stages = {}
    for name, option in step.options.items():
        run = option.run
        layout = Layout(run.tp, run.pp)
        devices = step.devices[name]
        stages[name] = StagePlan(name, layout, run.dp, devices, run.micro_batch, run.zero1, option.recomputes)
    return Target(stages, step.seconds, ceil(scale * max(step.peak_bytes.values())), placed=True)
