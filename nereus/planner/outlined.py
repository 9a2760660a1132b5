"""The plans of an outline: its options as rows, the exact search over them, and what each plan comes to.

Outline -> options of every holder (accelerators.py) -> Problem -> solve -> PlannedStep: devices, overlap graph, memory
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil

import numpy as np

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.execution import Offload
from nereus.cost.layer import Architecture
from nereus.cost.overlap import Overlap, Timings, overlap
from nereus.planner.accelerators import Option, Pricer
from nereus.planner.explain import Reason, why_not_faster, why_slower
from nereus.planner.fewest import on_fewest_devices
from nereus.planner.found import Report, Solution
from nereus.planner.pinned import can_lie_on, devices_of, reasons_of_pins
from nereus.planner.problem import Edge, Holder, Node, Pool, Problem, Rows, Stage
from nereus.planner.solve import solve
from nereus.spec.hardware import LinkClass
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline

SYNC_EFFICIENCY = 0.5
"""Of the link's peak that a weight sync reaches: broadcasts from few sources to many, not measured for a kind as yet."""

STAGES = {"generation": Stage.GENERATION, "inference": Stage.INFERENCE, "training": Stage.TRAINING}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One plan of an outline."""

    options: Mapping[str, Option]
    """By holder."""
    devices: Mapping[str, tuple[int, ...]]
    """R_M of each holder, numbered node by node."""
    overlap: Overlap
    """The critical path of the step, with every model-stage's seconds."""
    seconds: float
    """L_step."""
    peak_bytes: Mapping[int, float]
    """Of the fullest device of each kind: all that stays on it, and the most active holder's."""
    lost: str = ""
    """Why it is not the best: one sentence; empty for the best."""

    @property
    def num_devices(self) -> int:
        """Devices that it uses."""
        return len({device for devices in self.devices.values() for device in devices})


@dataclass(frozen=True, kw_only=True)
class OutlinePlanner:
    """Searches the plans of an outline."""

    outline: Outline
    models: Mapping[str, HfModel]
    learnt: Mapping[str, AcceleratorModel]
    num_devices: int | None = None
    """Plan for the first so many devices of the pool; None: for all."""
    one_pool: bool = False
    """Whether every holder takes all devices, as frameworks with one pool for all roles run them."""
    unpiped: frozenset[str] = frozenset()
    """Holders that have no pipeline, as on the inference engines of some frameworks."""
    across: bool = False
    """Whether TP over several nodes is offered to every holder; else where nothing else fits."""

    @cached_property
    def pricer(self) -> Pricer:
        """The options on the devices that are planned for."""
        return Pricer(self._cut, self.models, self.learnt, self.across)

    @cached_property
    def options(self) -> tuple[tuple[Option, ...], ...]:
        """Of every holder, in the workflow's order."""
        return tuple(self.options_of(holder) for holder in self.outline.workflow.holders)

    def options_of(self, holder: str) -> tuple[Option, ...]:
        """Of one holder: what fits on a device by itself and is not ruled out."""
        return tuple(option for option in self.pricer.options(holder) if self._may_run(option))

    def _may_run(self, option: Option) -> bool:
        fills = not self.one_pool or option.num_devices == self._pool.num_devices
        devices = self.outline.pin(option.holder).devices
        lies = devices is None or can_lie_on(self._pool, devices, option.kind, option.quantum)
        # What is written for a framework with one pool has no keys for these yet.
        alike = not self.one_pool or (option.run.ep == 1 and option.run.offload is Offload.NONE)
        return fills and alike and lies and (option.run.pp == 1 or option.holder not in self.unpiped)

    @cached_property
    def problem(self) -> Problem:
        """Eq. (1) with the outline's numbers."""
        workflow, classes = self.outline.workflow, self._classes
        holders = tuple(
            Holder(holder, self._stages(holder), self._rows(holder, table, classes), self.outline.pin(holder).devices)
            for holder, table in zip(workflow.holders, self.options, strict=True)
        )
        edges = tuple(
            Edge(at, to, self._sync_seconds(workflow.holders[to], classes))
            for sync in workflow.syncs
            for at, to in [(workflow.holders.index(sync.source), workflow.holders.index(sync.target))]
        )
        return Problem(holders, self._pool, edges, self.outline.asynchronous)

    def best(self, top: int, clock: Callable[[], float] = lambda: 0.0) -> tuple[tuple[PlannedStep, ...], Report]:
        """The `top` best plans that differ in the shape of some holder, fastest first; none where nothing fits."""
        solutions, report = solve(self.problem, top, clock) if all(self.options) else ((), Report())
        if not solutions and self._last_resort is not None:
            return self._last_resort.best(top, clock)
        if solutions:
            first = on_fewest_devices(self.problem, solutions[0])
            solutions = (first, *(solution for solution in solutions[1:] if solution.shape != first.shape))
        return tuple(self._planned(solution, solutions[0]) for solution in solutions), report

    @cached_property
    def _last_resort(self) -> OutlinePlanner | None:
        """Where no plan fits: the same search with TP over several nodes for every holder; None where that is this one."""
        return replace(self, across=True) if len(self._pool.nodes) > 1 and not self.across else None

    def reasons(self) -> tuple[Reason, ...]:
        """What keeps each holder's fastest option out of the best plan."""
        solutions, _ = solve(self.problem) if all(self.options) else ((), None)
        if not solutions:
            return () if self._last_resort is None else self._last_resort.reasons()
        pins = reasons_of_pins(self.outline, solutions[0].step_seconds, self._fastest)
        return (*why_not_faster(self.problem, solutions[0]), *pins)

    def _fastest(self, outline: Outline) -> float | None:
        """L_step of the best plan of another outline; None without any."""
        plans, _ = replace(self, outline=outline).best(1)
        return plans[0].seconds if plans else None

    def without_option(self) -> Mapping[str, str]:
        """The holders that cannot run at all, and why."""
        found = {}
        for holder, table in zip(self.outline.workflow.holders, self.options, strict=True):
            if table:
                continue
            pin = self.outline.pin(holder)
            if pin.devices is not None and max(pin.devices) >= self._pool.num_devices:
                found[holder] = (
                    f"pins.{holder}.devices has {max(pin.devices)}, and the plan is for the first {self._pool.num_devices}"
                )
            elif pin.settled and replace(self, outline=self._without_pin(holder)).options_of(holder):
                found[holder] = f"no layout of it agrees with pins.{holder} ({pin}) and fits"
            elif not self.pricer.can_be_cut(holder):
                found[holder] = "no DP degree and micro-batch divides its sequences; change micro_batches or the batch"
            elif self.pricer.options(holder):
                found[holder] = f"no layout of it takes all {self._pool.num_devices} devices"
            else:
                found[holder] = "it fits in the memory of no device in any layout"
        return found

    def _without_pin(self, holder: str) -> Outline:
        pins = {name: pin for name, pin in self.outline.pins.items() if name != holder}
        return self.outline.model_copy(update={"pins": pins})

    def runs_out(self, plan: PlannedStep, lengths: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
        """The first (step, mean response) of a growth at which a plan of this outline no longer fits, headroom included.

        The longest response grows with the mean. None if it fits to the end.
        """
        known: dict[float, bool] = {}
        for step, mean in lengths:
            if mean not in known:
                known[mean] = self._fits_at(plan, mean)
            if not known[mean]:
                return step, mean
        return None

    def grown(self, mean: float) -> OutlinePlanner:
        """The same outline with longer responses."""
        work = self.outline.workload
        longest = ceil(work.longest_tokens * mean / work.response_tokens)
        update = {"response_tokens": ceil(mean), "longest_response_tokens": longest}
        outline = self.outline.model_copy(update={"workload": work.model_copy(update=update)})
        return replace(self, outline=outline)

    def _fits_at(self, plan: PlannedStep, mean: float) -> bool:
        pricer = self.grown(mean).pricer
        options = {holder: pricer.at_lengths(option) for holder, option in plan.options.items()}
        hosted: dict[int, list[Option]] = {}
        for holder, devices in plan.devices.items():
            for device in devices:
                hosted.setdefault(device, []).append(options[holder])
        return all(
            sum(o.resident_bytes for o in held) + max(o.active_bytes for o in held) <= pricer.usable_bytes(held[0].kind)
            for held in hosted.values()
        )

    @property
    def _cut(self) -> Outline:
        """The outline on the first devices of its pool: whole nodes, and a part of one."""
        if self.num_devices is None:
            return self.outline
        left, groups = self.num_devices, []
        for group in self.outline.nodes:
            whole, rest = divmod(min(left, group.count * group.devices), group.devices)
            groups += [group.model_copy(update={"count": whole})] if whole else []
            groups += [group.model_copy(update={"count": 1, "devices": rest})] if rest else []
            left -= whole * group.devices + rest
        return self.outline.model_copy(update={"nodes": tuple(groups)})

    @cached_property
    def _pool(self) -> Pool:
        nodes, first = [], 0
        for group in self.pricer.outline.nodes:
            kind = self.pricer.kinds.index((group.kind, group.memory_bytes))
            for _ in range(group.count):
                nodes.append(Node(tuple(range(first, first + group.devices)), kind, float(group.host_memory or 0)))
                first += group.devices
        return Pool(tuple(nodes), tuple(self.pricer.usable_bytes(kind) for kind in range(len(self.pricer.kinds))))

    @cached_property
    def _classes(self) -> dict[tuple[int, int, int, int], int]:
        """Layout classes of all holders: kind, tp, pp and ep."""
        return {key: at for at, key in enumerate(sorted({o.layout for table in self.options for o in table}))}

    def _stages(self, holder: str) -> tuple[Stage, ...]:
        workflow = self.outline.workflow
        return tuple(dict.fromkeys(STAGES[workflow.stage(stage).role] for stage in workflow.roles(holder)))

    def _rows(self, holder: str, table: Sequence[Option], classes: Mapping[tuple[int, int, int, int], int]) -> Rows:
        """A table with one row of seconds per stage: what a holder does twice in a stage adds up."""
        stages, workflow = self._stages(holder), self.outline.workflow
        seconds = np.zeros((len(stages), len(table)))
        for column, option in enumerate(table):
            for stage, taken in option.seconds.items():
                seconds[stages.index(STAGES[workflow.stage(stage).role]), column] += taken
        return Rows.of(
            seconds,
            [option.num_devices for option in table],
            [option.resident_bytes for option in table],
            [option.active_bytes for option in table],
            [option.quantum for option in table],
            [classes[option.layout] for option in table],
            [option.kind for option in table],
            [option.host_bytes for option in table],
        )

    def _sync_seconds(
        self, target: str, classes: Mapping[tuple[int, int, int, int], int]
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Every device of the target takes its shard over its own link, the slowest that lies between the holders."""
        architecture = self.pricer.architecture(target)
        seconds = np.zeros((len(classes), len(classes)))
        for ((source_kind, *_), row), ((kind, tp, pp, ep), column) in product(classes.items(), classes.items()):
            hardware = self.pricer.hardware(kind)
            link = LinkClass.NODE if len(self._pool.nodes) == 1 and source_kind == kind else LinkClass.NETWORK
            shard = _parameters(architecture, ep) * 2 / (tp * pp)
            seconds[row, column] = shard / (hardware.bytes_s(link) * SYNC_EFFICIENCY)
        return seconds

    def _planned(self, solution: Solution, best: Solution) -> PlannedStep:
        workflow = self.outline.workflow
        chosen = {
            holder: table[row] for holder, table, row in zip(workflow.holders, self.options, solution.rows, strict=True)
        }
        devices: dict[str, list[int]] = {holder: [] for holder in workflow.holders}
        peaks: dict[int, float] = {}
        for node, pattern, taken in devices_of(self._pool, self.problem.holders, solution.placement):
            hosted = [holder for at, holder in enumerate(workflow.holders) if pattern >> at & 1]
            full = sum(chosen[h].resident_bytes for h in hosted)
            full += max((chosen[h].active_bytes for h in hosted), default=0.0)
            peaks[node.kind] = max(peaks.get(node.kind, 0.0), full)
            for holder in hosted:
                devices[holder] += taken
        syncs = {}
        for edge, sync in zip(self.problem.edges, workflow.syncs, strict=True):
            ends = [self._classes[chosen[end].layout] for end in (sync.source, sync.target)]
            syncs[sync.source, sync.target] = float(edge.seconds[ends[0], ends[1]])
        seconds = {stage: taken for option in chosen.values() for stage, taken in option.seconds.items()}
        placed = {holder: frozenset(held) for holder, held in devices.items()}
        return PlannedStep(
            options=chosen,
            devices={holder: tuple(sorted(held)) for holder, held in devices.items()},
            overlap=overlap(workflow, placed, Timings(seconds, syncs)),
            seconds=solution.step_seconds,
            peak_bytes=peaks,
            lost="" if solution is best else why_slower(self.problem, best, solution).sentence,
        )


def _parameters(architecture: Architecture, ep: int) -> float:
    """Of one EP rank."""
    ends = 1 if architecture.decoder.tied else 2
    return architecture.decoder.num_layers * architecture.layer_parameters(1, ep) + ends * architecture.end_parameters(1)
