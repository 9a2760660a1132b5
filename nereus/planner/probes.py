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

from nereus.cost.accelerator import Key
from nereus.cost.efficiency import Efficiencies
from nereus.cost.operations import OpClass
from nereus.cost.overlap import SECONDS
from nereus.cost.seconds import stack
from nereus.cost.volume import Workload
from nereus.planner.accelerators import Pricer
from nereus.planner.calibration import execution
from nereus.planner.options import LayoutClass, Option
from nereus.planner.outlined import OutlinePlanner
from nereus.planner.posed import PlannedStep
from nereus.planner.prices import way
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
    planner = planner.able
    best, _ = planner.best(1)
    found = {_names(plan): plan for plan in best}
    for table in planner.options if best else ():
        held = [_with_layout(planner, table[0].holder, layout) for layout in dict.fromkeys(o.layout for o in table)]
        found |= {_names(plan): plan for plan in sorted((p for plans in held for p in plans), key=_seconds)[:RIVALS]}
    return tuple(sorted(found.values(), key=_seconds))


def _with_layout(planner: OutlinePlanner, holder: str, layout: LayoutClass) -> tuple[PlannedStep, ...]:
    """The best plan in which one holder has this layout."""
    tables = tuple(tuple(o for o in table if o.holder != holder or o.layout == layout) for table in planner.options)
    return replace(planner, tables=tables).best(1)[0]


def _seconds(plan: PlannedStep) -> float:
    return plan.seconds


def _names(plan: PlannedStep) -> tuple[tuple[str, int, str], ...]:
    return tuple(_name(option) for option in plan.options.values())


def _name(option: Option) -> tuple[str, int, str]:
    return option.holder, option.kind, str(option)


Route = tuple[float, frozenset[int]]
"""A path through an overlap graph: seconds of its weight syncs, and the items on it."""


@dataclass
class _Items:
    """Model-stages in layouts, numbered as they are met. What their seconds hang on is all classes of each kind and role."""

    planner: OutlinePlanner
    ran: Mapping[str, RanStage]
    numbers: dict[tuple[str, int, str], int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    works: list[Workload] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    """Kind and role of each item."""
    own_errors: list[float] = field(default_factory=list)
    """Of each item, the relative error that no class explains."""

    def at(self, stage: str, option: Option) -> int:
        """The number of an item."""
        key = stage, option.kind, str(option)
        if key not in self.numbers:
            self.numbers[key] = len(self.seconds)
            self._add(stage, option)
        return self.numbers[key]

    def _add(self, stage: str, option: Option) -> None:
        pricer = self.planner.pricer
        self.keys.append((pricer.kinds[option.kind][0], self.planner.outline.workflow.stage(stage).role))
        self.works.append(pricer.prediction(stage, option.kind, option.run).work)
        self.own_errors.append(0.0 if self._was_run(option) else LAYOUT_ERROR)
        self.seconds.append(option.seconds[stage])

    def _known(self, key: Key) -> Efficiencies:
        names = [name for name, _ in self.planner.pricer.kinds]
        return self.planner.pricer.model(names.index(key[0]), key[1]).efficiencies

    def _was_run(self, option: Option) -> bool:
        found, pricer = self.ran.get(option.holder), Pricer(self.planner.outline, self.planner.models, {})
        if found is None or (found.nodes.kind, found.nodes.memory_bytes) != pricer.kinds[option.kind]:
            return False
        return way(execution(pricer, option.holder, option.kind, found.choice)) == way(option.run)

    def moves(self, item: int) -> Floats:
        """How much the log of an item's seconds rises with each class of its kind and role."""
        return self._known(self.keys[item]).sensitivity(self.works[item])

    def belief(self) -> Belief:
        """What is known of the seconds of all items so far."""
        blocks = {key: at * len(OpClass) for at, key in enumerate(dict.fromkeys(self.keys))}
        moves = np.zeros((len(self.seconds), len(blocks) * len(OpClass)))
        for item, key in enumerate(self.keys):
            moves[item, blocks[key] : blocks[key] + len(OpClass)] = self.moves(item)

        members = {key: [item for item, own in enumerate(self.keys) if own == key] for key in blocks}
        stacked = {key: stack([self.works[item] for item in items]) for key, items in members.items()}

        def predict(shifts: Floats) -> Floats:
            found = np.empty((len(shifts), len(self.seconds)))
            for key, first in blocks.items():
                own = shifts[:, first : first + len(OpClass)]
                found[:, members[key]] = self._known(key).possible_seconds(stacked[key], own)
            return found

        return Belief(np.array(self.seconds), moves, np.array(self.own_errors), predict)

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
        items = {stage: self.at(stage, option) for stage in option.seconds}
        whole = sum(belief.spread(item) ** 2 for item in items.values())
        shares: dict[tuple[Key, OpClass], float] = {}
        for item in items.values():
            for op, move in zip(OpClass, self.moves(item), strict=True):
                shares[self.keys[item], op] = shares.get((self.keys[item], op), 0.0) + move**2 / whole
        named = sorted((share, unknown) for unknown, share in shares.items() if share >= PINNED)
        return Probe(
            option=option,
            spread={stage: belief.spread(item) for stage, item in items.items()},
            saves_s=saves_s,
            pins=tuple(
                Pin(kind=key[0], role=key[1], op=op, spread=self._known(key).values[op].spread)
                for _, (key, op) in named[::-1]
            ),
        )


def _longest(paths: Iterable[Route]) -> list[Route]:
    """The paths that no other one is at least as long as, whatever the items take."""
    found: list[Route] = []
    for seconds, items in sorted(set(paths), key=lambda path: (-len(path[1]), -path[0], sorted(path[1]))):
        if not any(items <= others and seconds <= fixed for fixed, others in found):
            found.append((seconds, items))
    return found
