"""Ties of asynchronous jobs: of equally fast plans the one whose shorter side is the surest to stay the shorter one.

    generation | inference, training       L_step = the longer of both sides, and the weight sync

Where one side sets the pace, any plan of the other that is not slower is as good by the numbers. They are predictions: a
side that is predicted to end with the other one ends after it half of the time, and then the step is that much longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nereus.planner.explain import TIE
from nereus.planner.fewest import on_fewest_devices
from nereus.planner.found import Solution
from nereus.planner.problem import Problem, Stage
from nereus.planner.solve import solve

SLACK = 0.25
"""Share of the shorter side by which it should be shorter: two standard deviations of the difference of two predictions that
are off by 8 % each, as those of single model-stages are. More gains nothing, and takes devices."""


def settled(
    problem: Problem, solutions: Sequence[Solution], seconds_of: Callable[[Solution], float]
) -> tuple[Solution, ...]:
    """As many plans as were found, fastest first, with ties settled: slack up to `SLACK` first, then the fewest devices.

    `seconds_of` tells the L_step of a solution.
    """
    best = solutions[0]
    asked, found = _with_slack(problem, best, seconds_of) if problem.asynchronous else (problem, best)
    first = on_fewest_devices(asked, found)
    if not _is_tie(seconds_of(first), best):
        first = found
    first = replace(first, step_seconds=best.step_seconds)
    return (first, *(one for one in solutions if one.shape != first.shape))[: len(solutions)]


def _with_slack(problem: Problem, best: Solution, seconds_of: Callable[[Solution], float]) -> tuple[Problem, Solution]:
    """A plan as fast as the best one that has as much slack as any, and the problem whose best plan it is."""
    asked = _asked(problem, best)
    own = [np.flatnonzero(holder.rows.index == row).tolist() for holder, row in zip(asked.holders, best.rows, strict=True)]
    ((as_it_is, *_), _) = solve(asked.narrowed(own))
    if _is_tie(as_it_is.step_seconds, best):
        return asked, as_it_is
    (found, *_), _ = solve(asked, known=(as_it_is,))
    return (asked, found) if _is_tie(seconds_of(found), best) else (problem, best)


def _is_tie(step_s: float, best: Solution) -> bool:
    return step_s <= best.step_seconds * (1 + TIE)


def _asked(problem: Problem, best: Solution) -> Problem:
    """The problem with the shorter side longer by the slack, and no generation that is slower than the best plan's."""
    paces_s = _generation_s(problem, best)
    waits = paces_s + _edges_s(problem, best) >= best.step_seconds * (1 - TIE)
    holders = []
    for holder in problem.holders:
        generates = Stage.GENERATION in holder.stages
        rows = holder.rows
        if generates and waits:
            rows = rows.take(rows.seconds[holder.stages.index(Stage.GENERATION)] <= paces_s * (1 + TIE))
        elif generates is not waits:
            rows = replace(rows, seconds=rows.seconds * (1 + SLACK))
        holders.append(replace(holder, rows=rows))
    return replace(problem, holders=tuple(holders))


def _generation_s(problem: Problem, best: Solution) -> float:
    """Of the best plan."""
    return max(
        float(holder.rows.seconds[holder.stages.index(Stage.GENERATION), holder.rows.index == row][0])
        for holder, row in zip(problem.holders, best.rows, strict=True)
        if Stage.GENERATION in holder.stages
    )


def _edges_s(problem: Problem, best: Solution) -> float:
    """Of its weight syncs."""
    layouts = [
        int(holder.rows.layout[holder.rows.index == row][0]) for holder, row in zip(problem.holders, best.rows, strict=True)
    ]
    return sum(float(edge.seconds[layouts[edge.source], layouts[edge.target]]) for edge in problem.edges)
