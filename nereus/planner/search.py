"""The plan search of a job: its candidates as rows, the exact search over them, and what it chose as plans (Eq. (1)).

    SearchRequest  ->  candidates per model-stage  ->  Problem  ->  solve  ->  Choice

A job that runs its model-stages one after the other gains nothing from putting them apart but memory: where all of them fit
on one device together, a choice leaves open where they lie; else it says so, position by position.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nereus.emu.plan import Plan
from nereus.planner.candidates import Candidate, candidates
from nereus.planner.found import Solution
from nereus.planner.problem import Problem
from nereus.planner.request import SearchRequest
from nereus.planner.rows import problem_of
from nereus.planner.solve import solve


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan that the search found, and what it predicts."""

    chosen: tuple[Candidate, ...]
    """Devices are positions in the pool; those of pinned model-stages are their own."""
    seconds: float
    """L_step: the model-stages and the weight sync."""
    peak_bytes: int
    """Mem_peak: of the fullest device."""
    placed: bool
    """Whether the devices are part of the choice. If not, every device can host all model-stages, wherever they are put."""

    @property
    def shape(self) -> tuple[tuple[str, str, int], ...]:
        """Layout and DP degree of every model-stage: plans that differ in micro-batch only are near-duplicates."""
        return tuple((c.plan.stage, str(c.plan.layout), c.plan.dp) for c in self.chosen)

    def plan(self, epoch: int = 0) -> Plan:
        """The plan on positions of the pool, not yet on what is there."""
        return Plan(epoch, {c.plan.stage: c.plan for c in self.chosen})


def search(request: SearchRequest, top: int = 1) -> tuple[Choice, ...]:
    """The `top` best plans that differ in some layout or DP degree, fastest first; empty when none fits."""
    tables = {stage: candidates(request, stage) for stage in sorted(request.states)}
    problem = problem_of(request, tables)
    solutions, _ = solve(problem, top)
    return tuple(_choice(request, problem, tuple(tables.values()), solution) for solution in solutions)


def _choice(
    request: SearchRequest, problem: Problem, tables: tuple[tuple[Candidate, ...], ...], solution: Solution
) -> Choice:
    chosen = tuple(table[row] for table, row in zip(tables, solution.rows, strict=True))
    together = sum(c.state_bytes for c in chosen) + max(c.live_bytes for c in chosen)
    if not request.overlaps and together <= request.usable_bytes:
        return Choice(chosen, solution.step_seconds, together, placed=False)
    where: list[list[int]] = [[] for _ in chosen]
    peak = 0
    for node, state in zip(problem.pool.nodes, solution.placement, strict=True):
        free = iter(node.devices)
        for pattern, count in state:
            hosted = [i for i in range(len(chosen)) if pattern >> i & 1]
            full = sum(chosen[i].state_bytes for i in hosted) + max((chosen[i].live_bytes for i in hosted), default=0)
            peak = max(peak, full)
            for position in (next(free) for _ in range(count)):
                for i in hosted:
                    where[i].append(position)
    seated = tuple(
        c if c.plan.stage in request.pinned else replace(c, plan=replace(c.plan, devices=tuple(positions)))
        for c, positions in zip(chosen, where, strict=True)
    )
    return Choice(seated, solution.step_seconds, peak, placed=True)
