"""What a plan really takes in the simulated world. The planner sees it only through telemetry.

    Outline, models, seed -> Truth
    StagePlan, lengths, condition -> places of its EMUs -> ideal seconds x response surface -> the slowest EMU
    Plan -> seconds of every model-stage and weight sync -> composition -> seconds of the step
    Plan, lengths -> peak bytes of every device

The surfaces are those of published.py, drawn anew for each seed. Nothing here imports nereus.cost (lint-imports holds it): a
planner that is judged here is judged by another functional form than its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import mul
from types import MappingProxyType

from nereus.emu.plan import DeviceId, Plan, StagePlan
from nereus.errors import LayoutError
from nereus.sim.composition import Composition
from nereus.sim.condition import USUAL, Condition
from nereus.sim.links import Links
from nereus.sim.noise import StepNoise
from nereus.sim.peaks import peak_bytes
from nereus.sim.places import Topology
from nereus.sim.responses import Lengths
from nereus.sim.stages import StageTimes
from nereus.spec.hardware import Accelerator, LinkClass
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline, slowest
from nereus.spec.workflow import Workflow

REMEMBERED = 65_536
"""Steps that are worked out once and kept: (plan, lengths on their grid, condition). Then all are forgotten; one takes a few
hundred bytes. The same for where model-stages lie."""

REMEMBERED_PEAKS = 8192
"""The same of bytes by device: some ten kilobytes each in a large pool."""


@dataclass(frozen=True, slots=True)
class TrueStep:
    """One step of a plan, before noise."""

    plan: Plan
    composition: Composition
    tasks_s: tuple[float, ...]
    """Of every task of the composition: model-stages in the workflow's order, then weight syncs."""
    seconds: float

    @property
    def stages_s(self) -> Mapping[str, float]:
        """Seconds of every model-stage and weight sync, by name."""
        return MappingProxyType(dict(zip((task.name for task in self.composition.tasks), self.tasks_s, strict=True)))


@dataclass(frozen=True)
class Truth:
    """One simulated world: an outline's job on the outline's pool."""

    outline: Outline
    models: Mapping[str, HfModel]
    """By name in the workflow: actor, reference, critic, reward."""
    seed: int
    """Which world: no two seeds have the same surfaces."""
    _steps: dict[tuple[int, tuple[int, int], Condition], TrueStep] = field(default_factory=dict, repr=False, compare=False)
    """By the identity of the plan, which each value keeps alive."""

    _peaks: dict[tuple[int, Lengths], tuple[Plan, Mapping[DeviceId, int]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The same of bytes, at the lengths themselves."""
    _topologies: dict[StagePlan, Topology] = field(default_factory=dict, repr=False, compare=False)
    _compositions: dict[tuple[StagePlan, ...], Composition] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def kinds(self) -> Mapping[DeviceId, str]:
        """The kind of every device of the pool, counted as its nodes are listed."""
        groups = self.outline.nodes
        return dict(enumerate(group.kind for group in groups for _ in range(group.count * group.devices)))

    @cached_property
    def accelerators(self) -> Mapping[str, Accelerator]:
        """What a device of each kind can do at most, with the links that the outline declares."""
        kinds = dict.fromkeys(group.kind for group in self.outline.nodes)
        return {kind: slowest([group for group in self.outline.nodes if group.kind == kind]) for kind in kinds}

    @cached_property
    def node_of(self) -> Mapping[DeviceId, int]:
        """The node of every device of the pool."""
        sizes = [group.devices for group in self.outline.nodes for _ in range(group.count)]
        return dict(enumerate(node for node, size in enumerate(sizes) for _ in range(size)))

    @cached_property
    def workflow(self) -> Workflow:
        """The model-stages of a step."""
        return self.outline.workflow

    @cached_property
    def times(self) -> StageTimes:
        """The response surfaces."""
        return StageTimes(self.outline.workload, self.workflow, self.models, self.accelerators, self.seed)

    @cached_property
    def noise(self) -> StepNoise:
        """How steps differ."""
        return StepNoise(self.seed)

    def stage_seconds(self, stage: str, plan: StagePlan, lengths: Lengths, condition: Condition = USUAL) -> float:
        """Of one model-stage in one RL step: of its slowest EMU. `plan` is that of its holder. Raises LayoutError."""
        found = self._topology(plan).places(condition)
        return max(self.times.seconds(stage, plan, place, lengths) for place in found)

    def sync_seconds(self, source: StagePlan, target: StagePlan, condition: Condition = USUAL) -> float:
        """Of the weight sync from one holder to another.

        It stays inside the nodes where each node of the target has a whole EMU of the source.
        """
        sources = [{self.node_of[device] for device in group} for group in source.groups]
        targets = {self.node_of[device] for device in target.devices}
        whole = {node for nodes in sources for node in nodes if len(nodes) == 1}
        link = LinkClass.NODE if targets <= whole else LinkClass.NETWORK
        factor = condition.link(link, targets.union(*sources))
        accelerator = self.accelerators[self.kinds[target.devices[0]]]
        num_bytes = self.times.weight_bytes(source.stage)
        return Links(accelerator, self.seed).sync_seconds(num_bytes, link, factor)

    def step(self, plan: Plan, lengths: Lengths, condition: Condition = USUAL) -> TrueStep:
        """One RL step, or one interval between two weight syncs, before noise; lengths are taken on their grid."""
        key = id(plan), lengths.cell, condition
        known = self._steps.get(key)
        if known is None:
            if len(self._steps) >= REMEMBERED:
                self._steps.clear()
            known = self._steps[key] = self._worked_out(plan, lengths.rounded, condition)
        return known

    def step_seconds(self, plan: Plan, lengths: Lengths, condition: Condition = USUAL) -> tuple[float, Mapping[str, float]]:
        """Seconds of the step, and of every model-stage and weight sync in it, before noise."""
        found = self.step(plan, lengths, condition)
        return found.seconds, found.stages_s

    def realised(
        self, step: int, plan: Plan, lengths: Lengths, condition: Condition = USUAL
    ) -> tuple[float, tuple[float, ...]]:
        """Seconds of the step of this number with its noise, and of its tasks in the composition's order."""
        found = self.step(plan, lengths, condition)
        factors = self.noise.factors(step, len(found.tasks_s))
        tasks_s = tuple(map(mul, found.tasks_s, factors))
        return found.composition.seconds(tasks_s), tasks_s

    def peak_bytes(self, plan: Plan, lengths: Lengths) -> Mapping[DeviceId, int]:
        """The most that every device of the plan holds in a step with these lengths."""
        key = id(plan), lengths
        known = self._peaks.get(key)
        if known is None:
            if len(self._peaks) >= REMEMBERED_PEAKS:
                self._peaks.clear()
            known = self._peaks[key] = plan, peak_bytes(self.times, plan, lengths)
        return known[1]

    def move_seconds(self, num_bytes: float, link: LinkClass, device: DeviceId = 0, factor: float = 1.0) -> float:
        """Of moving bytes from a device; `factor` where the link is slow, or shared by so many moves."""
        return Links(self.accelerators[self.kinds[device]], self.seed).move_seconds(num_bytes, link, factor)

    def _topology(self, plan: StagePlan) -> Topology:
        known = self._topologies.get(plan)
        if known is None:
            if len(self._topologies) >= REMEMBERED:
                self._topologies.clear()
            known = self._topologies[plan] = Topology.of(plan, self.kinds, self.node_of)
        return known

    def _composition(self, plans: tuple[StagePlan, ...]) -> Composition:
        known = self._compositions.get(plans)
        if known is None:
            if len(self._compositions) >= REMEMBERED:
                self._compositions.clear()
            used = {name: frozenset(plan.devices) for name, plan in zip(self.workflow.holders, plans, strict=True)}
            known = self._compositions[plans] = Composition.of(self.workflow, used)
        return known

    def _worked_out(self, plan: Plan, lengths: Lengths, condition: Condition) -> TrueStep:
        workflow = self.workflow
        missing = [holder for holder in workflow.holders if holder not in plan.stages]
        if missing:
            raise LayoutError(
                f"plan of epoch {plan.epoch}: it has no {missing[0]}; it must have {', '.join(workflow.holders)}"
            )
        composition = self._composition(tuple(plan.stages[name] for name in workflow.holders))
        tasks_s = [self.stage_seconds(one.name, plan.stages[one.holder], lengths, condition) for one in workflow.stages]
        tasks_s += [self.sync_seconds(plan.stages[one.source], plan.stages[one.target], condition) for one in workflow.syncs]
        return TrueStep(plan, composition, tuple(tasks_s), composition.seconds(tasks_s))
