"""The plans of an outline: its options as rows, the exact search over them, and what each plan comes to.

Outline -> options of every holder (accelerators.py) -> Problem -> solve -> PlannedStep: devices, overlap graph, memory
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from nereus.cost.accelerator import Learnt
from nereus.cost.overlap import Overlap, Timings, overlap
from nereus.planner.accelerators import Option, Pricer
from nereus.planner.explain import Reason, why_not_faster, why_slower
from nereus.planner.found import Report, Solution
from nereus.planner.problem import Edge, Holder, Node, Pool, Problem, Rows, Stage
from nereus.planner.rules import FREE, Rules, Tables
from nereus.planner.solve import solve
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline

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
    learnt: Learnt
    num_devices: int | None = None
    """Plan for the first so many devices of the pool; None: for all."""
    rules: Rules = FREE
    """Of the framework that is to run the plan."""
    shapes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """Holders of which only this tp, pp and dp are looked at, with any micro-batch and recomputation."""
    largest_node: int = 0
    """Devices between which the fast links run; 0: as many as the largest node of a kind has."""
    told: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What pricers of this outline at these lengths have told before; see Pricer."""
    tables: Tables = ()
    """Options that another planner has priced, for the same outline and devices; none: they are priced here."""

    @cached_property
    def pricer(self) -> Pricer:
        """The options on the devices that are planned for."""
        return Pricer(self._cut, self.models, self.learnt, self.largest_node, self.told)

    @cached_property
    def priced(self) -> Tables:
        """All options of every holder that fit on a device, in the workflow's order."""
        return self.tables or tuple(self.pricer.options(holder) for holder in self.outline.workflow.holders)

    @cached_property
    def options(self) -> Tables:
        """Those that keep the rules."""
        return tuple(tuple(o for o in table if self._may_run(o)) for table in self.priced)

    def _may_run(self, option: Option) -> bool:
        shape = option.run.tp, option.run.pp, option.run.dp
        return self.shapes.get(option.holder, shape) == shape and self.rules.allow(option, self.pricer)

    @cached_property
    def problem(self) -> Problem:
        """Eq. (1) with the outline's numbers."""
        return self._problem(self.options)

    def _problem(self, tables: Tables) -> Problem:
        workflow, classes = self.outline.workflow, self._classes
        holders = tuple(
            Holder(holder, self._stages(holder), self._rows(holder, table, classes))
            for holder, table in zip(workflow.holders, tables, strict=True)
        )
        edges = tuple(
            Edge(at, to, self._sync_seconds(workflow.holders[to], classes))
            for sync in workflow.syncs
            for at, to in [(workflow.holders.index(sync.source), workflow.holders.index(sync.target))]
        )
        return Problem(holders, self._pool, edges, self.outline.asynchronous)

    def best(self, top: int, clock: Callable[[], float] = lambda: 0.0) -> tuple[tuple[PlannedStep, ...], Report]:
        """The `top` best plans that differ in the shape of some holder, fastest first; none where nothing fits."""
        solutions, report = self._solve(top, clock)
        return tuple(self._planned(solution, solutions[0]) for solution in solutions), report

    def _solve(self, top: int, clock: Callable[[], float] = lambda: 0.0) -> tuple[tuple[Solution, ...], Report]:
        """The best over all ways to settle what holders share."""
        found: tuple[Solution, ...] = ()
        report = Report()
        for rows in self.rules.agreements(self.options) if all(self.options) else ():
            found, part = solve(self.problem.narrowed(rows), top, clock, found)
            report = report.with_part(part)
        return found, report

    def reasons(self) -> tuple[Reason, ...]:
        """What keeps each holder's fastest option out of the best plan."""
        solutions, _ = self._solve(1)
        return why_not_faster(self.problem, solutions[0]) if solutions else ()

    def without_rules(self, plan: PlannedStep) -> tuple[float, tuple[str, ...]]:
        """L_step of the best plan that no rule binds, and the rules that it breaks; () if none costs time."""
        (free, *_), _ = solve(self._problem(self.priced))
        chosen = {holder: table[row] for holder, table, row in zip(plan.options, self.priced, free.rows, strict=True)}
        broken = self.rules.broken(chosen, self.pricer)
        return (free.step_seconds, broken) if broken and free.step_seconds < plan.seconds else (plan.seconds, ())

    def without_option(self) -> Mapping[str, str]:
        """The holders that cannot run at all, and why."""
        found = {}
        for holder, table, priced in zip(self.outline.workflow.holders, self.options, self.priced, strict=True):
            if table:
                continue
            if not self.pricer.can_be_cut(holder):
                found[holder] = "no DP degree and micro-batch divides its sequences; change micro_batches or the batch"
            elif priced:
                rules = "; ".join(self.rules.in_the_way(priced, self.pricer))
                found[holder] = f"no layout of it that fits in memory keeps the rules: {rules}"
            else:
                found[holder] = "it fits in the memory of no device in any layout"
        return found

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
        return replace(self, outline=outline, told={}, tables=())

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
                nodes.append(Node(tuple(range(first, first + group.devices)), kind))
                first += group.devices
        return Pool(tuple(nodes), tuple(self.pricer.usable_bytes(kind) for kind in range(len(self.pricer.kinds))))

    @cached_property
    def _classes(self) -> dict[tuple[int, int, int], int]:
        """Layout classes of all holders: kind, tp and pp."""
        return {key: at for at, key in enumerate(sorted({o.layout for table in self.priced for o in table}))}

    def _stages(self, holder: str) -> tuple[Stage, ...]:
        workflow = self.outline.workflow
        return tuple(dict.fromkeys(STAGES[workflow.stage(stage).role] for stage in workflow.roles(holder)))

    def _rows(self, holder: str, table: Sequence[Option], classes: Mapping[tuple[int, int, int], int]) -> Rows:
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
            [option.run.tp for option in table],
            [classes[option.layout] for option in table],
            [option.kind for option in table],
        )

    def _sync_seconds(
        self, target: str, classes: Mapping[tuple[int, int, int], int]
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """By layout classes of both ends, over the slowest link that lies between the holders."""
        seconds = np.zeros((len(classes), len(classes)))
        for (source, row), (to, column) in product(classes.items(), classes.items()):
            seconds[row, column] = self.pricer.sync_seconds(target, source, to, one_node=len(self._pool.nodes) == 1)
        return seconds

    def _planned(self, solution: Solution, best: Solution) -> PlannedStep:
        workflow = self.outline.workflow
        chosen = {
            holder: table[row] for holder, table, row in zip(workflow.holders, self.options, solution.rows, strict=True)
        }
        devices: dict[str, list[int]] = {holder: [] for holder in workflow.holders}
        peaks: dict[int, float] = {}
        for node, state in zip(self._pool.nodes, solution.placement, strict=True):
            free = iter(node.devices)
            for pattern, count in state:
                hosted = [holder for at, holder in enumerate(workflow.holders) if pattern >> at & 1]
                full = sum(chosen[h].resident_bytes for h in hosted)
                full += max((chosen[h].active_bytes for h in hosted), default=0.0)
                peaks[node.kind] = max(peaks.get(node.kind, 0.0), full)
                for device in (next(free) for _ in range(count)):
                    for holder in hosted:
                        devices[holder].append(device)
        syncs = {}
        for edge, sync in zip(self.problem.edges, workflow.syncs, strict=True):
            ends = [self._classes[chosen[end].layout] for end in (sync.source, sync.target)]
            syncs[sync.source, sync.target] = float(edge.seconds[ends[0], ends[1]])
        seconds = {stage: taken for option in chosen.values() for stage, taken in option.seconds.items()}
        placed = {holder: frozenset(held) for holder, held in devices.items()}
        return PlannedStep(
            options=chosen,
            devices={holder: tuple(held) for holder, held in devices.items()},
            overlap=overlap(workflow, placed, Timings(seconds, syncs)),
            seconds=solution.step_seconds,
            peak_bytes=peaks,
            lost="" if solution is best else why_slower(self.problem, best, solution).sentence,
        )
