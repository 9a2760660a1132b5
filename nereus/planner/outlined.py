"""The plans of an outline: the exact search over its options, why not others, and when a plan runs out of memory.

Outline -> options of every holder (accelerators.py) that keep pins and rules -> Posed -> solve -> PlannedStep
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any

from nereus.cost.accelerator import Learnt
from nereus.planner.accelerators import Pricer
from nereus.planner.explain import Reason, why_not_faster
from nereus.planner.found import Report, Solution
from nereus.planner.options import Degrees, Option
from nereus.planner.pinned import can_lie_on, reasons_of_pins
from nereus.planner.posed import PlannedStep, Posed, pool_of
from nereus.planner.problem import Pool, Problem
from nereus.planner.rules import FREE, Rules, Tables
from nereus.planner.slack import settled
from nereus.planner.solve import solve
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import Outline


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
    shapes: Mapping[str, Degrees] = field(default_factory=dict)
    """Holders of which only these degrees are looked at, with any micro-batch and recomputation."""
    largest_node: int = 0
    """Devices between which the fast links run; 0: as many as the largest node of a kind has."""
    usual_longest: int = 0
    """The longest response that is expected, for which generation waits; 0: the longest that must fit."""
    told: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What pricers of this outline at these lengths have told before; see Prices."""
    tables: Tables = ()
    """Options that another planner has priced for the same outline and devices: no others are tried. None: priced here."""
    across: bool = False
    """Whether TP over several nodes is offered to every holder; else where nothing else fits."""

    @cached_property
    def pricer(self) -> Pricer:
        """The options on the devices that are planned for."""
        return Pricer(
            outline=self._cut,
            models=self.models,
            learnt=self.learnt,
            largest_node=self.largest_node,
            usual_longest=self.usual_longest,
            told=self.told,
            across=self.across,
        )

    @cached_property
    def priced(self) -> Tables:
        """All options of every holder that fit on a device and agree with its pin, in the workflow's order."""
        return self.tables or tuple(self._priced(holder) for holder in self.outline.workflow.holders)

    def _priced(self, holder: str) -> tuple[Option, ...]:
        options, devices = self.pricer.options(holder), self.outline.pin(holder).devices
        if devices is None:
            return options
        return tuple(option for option in options if can_lie_on(self._pool, devices, option.kind, option.quantum))

    @cached_property
    def options(self) -> Tables:
        """Those that keep the rules."""
        return tuple(self._kept(table) for table in self.priced)

    def _kept(self, table: Sequence[Option]) -> tuple[Option, ...]:
        return tuple(option for option in table if self._may_run(option))

    def _may_run(self, option: Option) -> bool:
        wanted = self.shapes.get(option.holder, option.degrees)
        return wanted == option.degrees and self.rules.allow(option, self.pricer)

    @cached_property
    def _posed(self) -> Posed:
        return Posed(self.pricer, self.options)

    @property
    def problem(self) -> Problem:
        """Eq. (1) with the outline's numbers."""
        return self._posed.problem

    def best(self, top: int, clock: Callable[[], float] = lambda: 0.0) -> tuple[tuple[PlannedStep, ...], Report]:
        """The `top` best plans that differ in the shape of some holder, fastest first; none where nothing fits."""
        solutions, report = self._solve(top, clock)
        if not solutions:
            return ((), report) if self._last_resort is None else self._last_resort.best(top, clock)
        solutions = settled(self._agreed(solutions[0]), solutions, self._seconds)
        first = solutions[0]
        return tuple(self._posed.planned(solution, first) for solution in solutions), report

    def _seconds(self, solution: Solution) -> float:
        """L_step of a solution of any problem with these options."""
        return self._posed.planned(solution, solution).overlap.seconds

    def _solve(self, top: int, clock: Callable[[], float] = lambda: 0.0) -> tuple[tuple[Solution, ...], Report]:
        """The best over all ways to settle what holders share."""
        found: tuple[Solution, ...] = ()
        report = Report()
        for rows in self.rules.agreements(self.options) if all(self.options) else ():
            found, part = solve(self.problem.narrowed(rows), top, clock, found)
            report = report.with_part(part)
        return found, report

    def _agreed(self, solution: Solution) -> Problem:
        """The problem with the shared settings that a solution has."""
        ways = self.rules.agreements(self.options)
        held = next(rows for rows in ways if all(row in own for row, own in zip(solution.rows, rows, strict=True)))
        return self.problem.narrowed(held)

    @cached_property
    def _last_resort(self) -> OutlinePlanner | None:
        """Where no plan fits: the same search with TP over several nodes for every holder; None where that is this one."""
        is_last = self.across or self.tables or len(self._pool.nodes) == 1
        return None if is_last else replace(self, across=True)

    @cached_property
    def able(self) -> OutlinePlanner:
        """This planner, or where it has no plan its last resort."""
        return self if self._last_resort is None or self._solve(1)[0] else self._last_resort

    def reasons(self) -> tuple[Reason, ...]:
        """What keeps each holder's fastest option out of the best plan."""
        able = self.able
        solutions, _ = able._solve(1)
        if not solutions:
            return ()
        pins = reasons_of_pins(self.outline, solutions[0].step_seconds, self._fastest)
        return (*why_not_faster(able.problem, solutions[0]), *pins)

    def _fastest(self, outline: Outline) -> float | None:
        """L_step of the best plan of another outline; None without any."""
        plans, _ = self._of(outline).best(1)
        return plans[0].seconds if plans else None

    def _of(self, outline: Outline) -> OutlinePlanner:
        """The same of an outline with other pins."""
        return replace(self, outline=outline, tables=())

    def without_rules(self, plan: PlannedStep) -> tuple[float, tuple[str, ...]]:
        """L_step of the best plan that no rule binds, and the rules that it breaks; () if none costs time."""
        able = self.able
        (free, *_), _ = solve(Posed(able.pricer, able.priced).problem)
        chosen = {holder: table[row] for holder, table, row in zip(plan.options, able.priced, free.rows, strict=True)}
        broken = self.rules.broken(chosen, able.pricer)
        return (free.step_seconds, broken) if broken and free.step_seconds < plan.seconds else (plan.seconds, ())

    def without_option(self) -> Mapping[str, str]:
        """The holders that cannot run at all, and why."""
        tables = zip(self.outline.workflow.holders, self.options, self.priced, strict=True)
        return {holder: self._why_none(holder, priced) for holder, table, priced in tables if not table}

    def _why_none(self, holder: str, priced: Sequence[Option]) -> str:
        pin, there = self.outline.pin(holder), self._pool.num_devices
        if pin.devices is not None and max(pin.devices) >= there:
            return f"pins.{holder}.devices has {max(pin.devices)}, and the plan is for the first {there}"
        if pin.settled:
            pins = {name: other for name, other in self.outline.pins.items() if name != holder}
            free = self._of(self.outline.model_copy(update={"pins": pins}))
            if free._kept(free._priced(holder)):
                return f"no layout of it agrees with pins.{holder} ({pin}) and fits"
        if not self.pricer.can_be_cut(holder):
            return "no DP degree and micro-batch divides its sequences; change micro_batches or the batch"
        if priced:
            rules = "; ".join(self.rules.in_the_way(priced, self.pricer))
            return f"no layout of it that fits in memory keeps the rules: {rules}"
        return "it fits in the memory of no device in any layout"

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
        return replace(self, outline=outline, usual_longest=0, told={}, tables=())

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
        return pool_of(self.pricer)
