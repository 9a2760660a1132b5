"""The overlap graph of a step by which holders may share devices: what runs serially, what in parallel, what L_step is.

Holders of one stage that share a device run one after the other, those apart run at the same time: L of a stage is the
heaviest set of holders that pairwise share (exact up to four holders per stage), and the sets that are pairwise apart are
the C_s of Eq. (1), whose devices must all be in the pool.

    overlap set = the pairs that may share    ->  chains (maximal serial sets, per stage),  together (maximal C_s)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TypeAlias

import numpy as np

from nereus.planner.problem import Floats, Problem, Stage, Workflow

Pair: TypeAlias = tuple[int, int]
"""Two holders, the smaller number first."""


@dataclass(frozen=True, slots=True)
class OverlapSet:
    """One way for holders to share devices. A plan may share less than it allows; then another set says its L_step."""

    shared: frozenset[Pair]
    """Holders of one stage that may share devices, and so run one after the other."""
    apart: frozenset[Pair]
    """Holders that must not share a device."""
    chains: Mapping[Stage, tuple[tuple[int, ...], ...]]
    """For each stage the maximal sets of holders that run one after the other."""
    together: tuple[tuple[int, ...], ...]
    """The maximal sets of two or more holders that are pairwise apart: C_s of Eq. (1)."""


def overlap_sets(problem: Problem) -> tuple[OverlapSet, ...]:
    """Every overlap set of a problem: one per subset of the pairs that share a stage; one in all if nothing overlaps."""
    return _overlap_sets(problem.workflow)


@cache
def _overlap_sets(workflow: Workflow) -> tuple[OverlapSet, ...]:
    meeting = [pair for pair in combinations(range(len(workflow.stages)), 2) if _share_stage(workflow, pair)]
    forced = _forced(workflow)
    if not workflow.overlaps:
        return (_overlap_set(workflow, meeting, forced),)
    subsets = (subset for size in range(len(meeting) + 1) for subset in combinations(meeting, size))
    return tuple(_overlap_set(workflow, subset, forced | (set(meeting) - set(subset))) for subset in subsets)


def _overlap_set(workflow: Workflow, shared: Iterable[Pair], apart: set[Pair]) -> OverlapSet:
    stages = sorted({stage for stages in workflow.stages for stage in stages})
    active = {stage: tuple(i for i, own in enumerate(workflow.stages) if stage in own) for stage in stages}
    chains = {stage: maximal(active[stage], shared) for stage in stages}
    together = tuple(group for group in maximal(tuple(range(len(workflow.stages))), apart) if len(group) > 1)
    return OverlapSet(frozenset(shared), frozenset(apart), chains, together)


def _forced(workflow: Workflow) -> set[Pair]:
    """In asynchronous execution generation shares no device with the rest."""
    generates = [Stage.GENERATION in stages for stages in workflow.stages]
    pairs = combinations(range(len(generates)), 2)
    return {(a, b) for a, b in pairs if workflow.asynchronous and generates[a] != generates[b]}


def _share_stage(workflow: Workflow, pair: Pair) -> bool:
    return bool(set(workflow.stages[pair[0]]) & set(workflow.stages[pair[1]]))


def maximal(members: tuple[int, ...], pairs: Iterable[Pair]) -> tuple[tuple[int, ...], ...]:
    """The maximal cliques of a small graph, largest first."""
    edges = set(pairs)
    found: list[tuple[int, ...]] = []
    for size in range(len(members), 0, -1):
        for group in combinations(members, size):
            if all(pair in edges for pair in combinations(group, 2)) and not any(
                set(group) <= set(other) for other in found
            ):
                found.append(group)
    return tuple(found)


def stage_seconds(overlap: OverlapSet, seconds: Mapping[tuple[int, Stage], Floats], stage: Stage) -> Floats:
    """Length of one stage: its slowest chain. `seconds` by holder and stage, of any shapes that broadcast."""
    total = np.zeros((1, 1))
    for chain in overlap.chains[stage]:
        length = seconds[chain[0], stage]
        for holder in chain[1:]:
            length = length + seconds[holder, stage]
        total = np.maximum(total, length)
    return total


def step_seconds(problem: Problem, by_stage: Mapping[Stage, Floats], edge_seconds: Floats | float) -> Floats:
    """L_step of stage lengths: their sum, or in asynchronous execution the longer of generation and the rest."""
    rest = np.zeros((1, 1))
    for stage in problem.stages:
        if not (problem.asynchronous and stage is Stage.GENERATION):
            rest = rest + by_stage[stage]
    if problem.asynchronous and Stage.GENERATION in by_stage:
        rest = np.maximum(rest, by_stage[Stage.GENERATION])
    return rest + edge_seconds


def twins(problem: Problem) -> tuple[Pair, ...]:
    """Pairs of holders that can swap their parts in any plan: the same stages, the same table, no edge, not pinned."""
    joined = {end for edge in problem.edges for end in (edge.source, edge.target)}
    free = [i for i, t in enumerate(problem.holders) if i not in joined and t.devices is None]
    return tuple(pair for pair in combinations(free, 2) if _equal(problem, pair))


def swapped(pairs: Iterable[Pair], one: int, other: int) -> tuple[Pair, ...]:
    """The pairs with two holders swapped, in order."""
    to = {one: other, other: one}
    return tuple(sorted((min(p), max(p)) for p in ((to.get(a, a), to.get(b, b)) for a, b in pairs)))


def _equal(problem: Problem, pair: Pair) -> bool:
    one, other = (problem.holders[i] for i in pair)
    if one.stages != other.stages or len(one.rows) != len(other.rows):
        return False
    columns = ("seconds", "num_devices", "resident_bytes", "active_bytes", "quantum", "kind", "layout", "host_bytes")
    return all(np.array_equal(getattr(one.rows, name), getattr(other.rows, name)) for name in columns)
