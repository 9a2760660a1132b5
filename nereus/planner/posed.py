"""An outline's options as the numbers of a search, and what a solution of it comes to.

Pricer, options of every holder -> Posed -> Problem -> solve -> Solution -> PlannedStep: devices, overlap graph, memory
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from nereus.cost.overlap import Overlap, Timings, overlap
from nereus.planner.accelerators import Pricer
from nereus.planner.explain import why_slower
from nereus.planner.found import Solution
from nereus.planner.options import LayoutClass, Option
from nereus.planner.pinned import devices_of
from nereus.planner.problem import Edge, Floats, Holder, Node, Pool, Problem, Rows, Stage
from nereus.planner.rules import Tables

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


@dataclass(frozen=True)
class Posed:
    """The problem that some options pose."""

    pricer: Pricer
    tables: Tables

    @cached_property
    def problem(self) -> Problem:
        """Eq. (1) with the outline's numbers."""
        outline = self.pricer.outline
        names = outline.workflow.holders
        holders = tuple(
            Holder(name, self._stages(name), self._rows(name, table), outline.pin(name).devices)
            for name, table in zip(names, self.tables, strict=True)
        )
        edges = tuple(
            Edge(names.index(sync.source), names.index(sync.target), self._sync_seconds(sync.target))
            for sync in outline.workflow.syncs
        )
        return Problem(holders, self.pool, edges, outline.asynchronous)

    @cached_property
    def pool(self) -> Pool:
        """P_gpu, devices numbered as the outline lists its nodes."""
        return pool_of(self.pricer)

    @cached_property
    def _classes(self) -> dict[LayoutClass, int]:
        """Layout classes of all holders."""
        return {key: at for at, key in enumerate(sorted({o.layout for table in self.tables for o in table}))}

    def _stages(self, holder: str) -> tuple[Stage, ...]:
        workflow = self.pricer.outline.workflow
        return tuple(dict.fromkeys(STAGES[workflow.stage(stage).role] for stage in workflow.roles(holder)))

    def _rows(self, holder: str, table: Sequence[Option]) -> Rows:
        """A table with one row of seconds per stage: what a holder does twice in a stage adds up."""
        stages, workflow = self._stages(holder), self.pricer.outline.workflow
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
            [self._classes[option.layout] for option in table],
            [option.kind for option in table],
            [option.host_bytes for option in table],
        )

    def _sync_seconds(self, target: str) -> Floats:
        """By layout classes of both ends, over the slowest link that lies between the holders."""
        seconds = np.zeros((len(self._classes), len(self._classes)))
        one_node = len(self.pool.nodes) == 1
        for (source, row), (to, column) in product(self._classes.items(), self._classes.items()):
            seconds[row, column] = self.pricer.sync_seconds(target, source, to, one_node=one_node)
        return seconds

    def planned(self, solution: Solution, best: Solution) -> PlannedStep:
        """The plan that a solution of the problem is, and why it is not the best one."""
        workflow = self.pricer.outline.workflow
        chosen = {h: table[row] for h, table, row in zip(workflow.holders, self.tables, solution.rows, strict=True)}
        devices: dict[str, list[int]] = {holder: [] for holder in workflow.holders}
        peaks: dict[int, float] = {}
        for node, pattern, taken in devices_of(self.pool, self.problem.holders, solution.placement):
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


def pool_of(pricer: Pricer) -> Pool:
    """The pool of a pricer's outline, with what a plan may fill."""
    nodes, first = list[Node](), 0
    for group in pricer.outline.nodes:
        kind = pricer.kinds.index((group.kind, group.memory_bytes))
        for _ in range(group.count):
            nodes.append(Node(tuple(range(first, first + group.devices)), kind, float(group.host_memory or 0)))
            first += group.devices
    return Pool(tuple(nodes), tuple(pricer.usable_bytes(kind) for kind in range(len(pricer.kinds))))
