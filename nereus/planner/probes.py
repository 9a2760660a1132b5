"""Which runs to measure first: the layouts whose times would change the choice among plans of an outline the most.

    OutlinePlanner -> rivals: the best plan with each layout of each holder -> items: (model-stage, layout)
        -> belief (spreads of efficiencies by class) -> value.choose -> Probe: a holder's layout, what it saves, what it pins

A probe runs one holder's model-stages in one layout on its devices; nothing else of the plan has to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import networkx as nx
import numpy as np

from nereus.cost.operations import OpClass
from nereus.cost.overlap import SECONDS
from nereus.planner.accelerators import Option
from nereus.planner.found import Solution
from nereus.planner.outlined import OutlinePlanner, PlannedStep
from nereus.planner.solve import solve
from nereus.planner.value import LAYOUT_ERROR, Belief, Floats, choose
from nereus.spec.ran import RanStage

RIVALS = 6
"""Layouts of each holder that the choice is among, those of the fastest plans: slower ones hardly ever win."""

PINNED = 0.1
"""Share of a probe's variance from which on an operation class is named as what it pins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """An operation class that a probe tells about."""

    kind: str
    role: str
    op: OpClass
    spread: float
    """Standard deviation of its log as of now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One run that is worth measuring."""

    option: Option
    """The holder, and how it runs; its predicted seconds by model-stage."""
    spread: Mapping[str, float]
    """Standard deviation of the log of those seconds."""
    saves_s: float
    """Seconds per step that knowing it is expected to save, beside the probes before it."""
    pins: tuple[Pin, ...]
    """What makes its seconds uncertain, the largest share first."""


def suggest(planner: OutlinePlanner, most: int, ran: Mapping[str, RanStage] = MappingProxyType({})) -> tuple[Probe, ...]:
    """The runs to measure, the most valuable first; none where no measurement would change the choice.

    `ran` is what was learnt from, by holder: those layouts keep no error of their own.
    """
    plans = rivals(planner)
    if len(plans) < 2:
        return ()
    items = _Items(planner, ran)
    steps = items.steps(plans)
    options = list({_name(option): option for plan in plans for option in plan.options.values()}.values())
    measures = [[items.at(stage, option) for stage in option.seconds] for option in options]
    belief = items.belief()
    return tuple(items.probe(belief, options[at], saves) for at, saves in choose(belief, measures, steps, most))


def rivals(planner: OutlinePlanner) -> tuple[PlannedStep, ...]:
    """The best plan, and the best ones with another layout of some holder, fastest first.

    The next best plans overall would not do: they differ in the model-stages that hardly count.
    """
    if not all(planner.options):
        return ()
    problem = planner.problem
    best = solve(problem)[0][0]
    found = {best.rows: best}
    for at, holder in enumerate(problem.holders):
        pinned: list[Solution] = []
        for layout in np.unique(holder.rows.layout):
            own = replace(holder, rows=holder.rows.take(holder.rows.layout == layout))
            others = (*problem.holders[:at], own, *problem.holders[at + 1 :])
            pinned += solve(replace(problem, holders=others))[0]
        found |= {solution.rows: solution for solution in sorted(pinned)[:RIVALS]}
    return tuple(planner.planned(solution, best) for solution in sorted(found.values()))


def _name(option: Option) -> tuple[str, int, str]:
    return option.holder, option.kind, str(option)


Route = tuple[float, frozenset[int]]
"""A path through an overlap graph: seconds of its weight syncs, and the items on it."""


@dataclass
class _Items:
    """Model-stages in layouts, numbered as they are met, and the unknowns that their seconds hang on."""

    planner: OutlinePlanner
    ran: Mapping[str, RanStage]
    numbers: dict[tuple[str, int, str], int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    moves: list[Mapping[tuple[str, str, OpClass], float]] = field(default_factory=list)
    """Of each item, how much the log of its seconds rises with each (kind, role, class)."""
    own_errors: list[float] = field(default_factory=list)
    """Of each item, the error of its log that no class explains."""

    def at(self, stage: str, option: Option) -> int:
        """The number of an item."""
        key = stage, option.kind, str(option)
        if key not in self.numbers:
            self.numbers[key] = len(self.seconds)
            self.seconds.append(option.seconds[stage])
            self.moves.append(self._moves(stage, option))
            self.own_errors.append(0.0 if self._was_run(option) else LAYOUT_ERROR)
        return self.numbers[key]

    def _was_run(self, option: Option) -> bool:
        found, pricer = self.ran.get(option.holder), self.planner.pricer
        if found is None or (found.nodes.kind, found.nodes.memory_bytes) != pricer.kinds[option.kind]:
            return False
        return pricer.execution(option.holder, option.kind, found.choice) == option.run

    def _moves(self, stage: str, option: Option) -> dict[tuple[str, str, OpClass], float]:
        pricer, role = self.planner.pricer, self.planner.outline.workflow.stage(stage).role
        kind, known = pricer.kinds[option.kind][0], pricer.model(option.kind, role).efficiencies
        moves = known.sensitivity(pricer.prediction(stage, option.kind, option.run).work)
        return {(kind, role, op): float(move) for op, move in zip(OpClass, moves, strict=True) if move}

    def belief(self) -> Belief:
        """What is known of the seconds of all items so far."""
        unknowns = list(dict.fromkeys(unknown for moves in self.moves for unknown in moves))
        table = np.array([[moves.get(unknown, 0.0) for unknown in unknowns] for moves in self.moves])
        return Belief.of(self.seconds, table, self.own_errors)

    def steps(self, plans: Sequence[PlannedStep]) -> Callable[[Floats], Floats]:
        """L_step of each plan as a function of the items' seconds: the longest of the paths through its overlap graph."""
        paths = [self._paths(plan) for plan in plans]
        fixed = np.array([seconds for found in paths for seconds, _ in found])
        table = np.zeros((len(fixed), len(self.seconds)))
        for row, items in enumerate(items for found in paths for _, items in found):
            table[row, list(items)] = 1.0
        first = np.cumsum([0, *(len(found) for found in paths[:-1])])
        # einsum and not a product: one of BLAS's threads waiting for a busy core costs more than the sum itself.
        return lambda seconds: np.maximum.reduceat(np.einsum("pi,is->ps", table, seconds) + fixed[:, None], first, axis=0)

    def _paths(self, plan: PlannedStep) -> list[Route]:
        """The paths through a plan's overlap graph, without those that others contain."""
        graph, workflow = plan.overlap.graph, self.planner.outline.workflow
        options = {stage.name: plan.options[stage.holder] for stage in workflow.stages}
        ending: dict[str, list[Route]] = {}
        for name in nx.topological_sort(graph):
            own = frozenset([self.at(name, options[name])] if name in options else [])
            fixed = 0.0 if own else graph.nodes[name][SECONDS]
            before = [
                (seconds + data[SECONDS], items)
                for earlier, data in graph.pred[name].items()
                for seconds, items in ending[earlier]
            ]
            ending[name] = _longest([(seconds + fixed, items | own) for seconds, items in before or [(0.0, frozenset())]])
        return _longest([path for paths in ending.values() for path in paths])

    def probe(self, belief: Belief, option: Option, saves_s: float) -> Probe:
        """What is said of a chosen run."""
        numbers = {stage: self.at(stage, option) for stage in option.seconds}
        parts: dict[tuple[str, str, OpClass], float] = {}
        for number in numbers.values():
            for unknown, move in self.moves[number].items():
                parts[unknown] = parts.get(unknown, 0.0) + move**2
        whole = sum(float(belief.covariance[number, number]) for number in numbers.values())
        named = sorted((unknown for unknown in parts if parts[unknown] >= PINNED * whole), key=lambda u: -parts[u])
        model = self.planner.pricer.model
        return Probe(
            option=option,
            spread={stage: float(np.sqrt(belief.covariance[number, number])) for stage, number in numbers.items()},
            saves_s=saves_s,
            pins=tuple(
                Pin(kind=kind, role=role, op=op, spread=model(option.kind, role).efficiencies.values[op].spread)
                for kind, role, op in named
            ),
        )


def _longest(paths: Iterable[Route]) -> list[Route]:
    """The paths that no other one is at least as long as, whatever the items take."""
    found: list[Route] = []
    for seconds, items in sorted(set(paths), key=lambda path: (-len(path[1]), -path[0], sorted(path[1]))):
        if not any(items <= others and seconds <= fixed for fixed, others in found):
            found.append((seconds, items))
    return found
