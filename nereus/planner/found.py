"""What a search has found so far, and what it reports: the K best plans of distinct shape, and how hard it was."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import TypeAlias

from nereus.planner.placement import Placement

Shape: TypeAlias = tuple[tuple[int, int], ...]
"""(layout class, devices) of every holder: plans that differ in nothing of it are near-duplicates."""


@dataclass(frozen=True, slots=True, order=True)
class Solution:
    """A plan: a candidate and devices for every holder."""

    step_seconds: float
    """L_step."""
    rows: tuple[int, ...]
    """For each holder the row of its table."""
    shape: Shape
    placement: Placement
    """For each node of the pool, how many devices host which holders."""


@dataclass(slots=True)
class Report:
    """How a search went."""

    rows: int = 0
    """Candidates of all holders."""
    frontier_rows: tuple[int, ...] = ()
    """Those of each holder that were searched in the end."""
    overlap_sets: int = 0
    tree_nodes: int = 0
    """Partial plans that were grown by a holder."""
    leaves: int = 0
    """Whole plans that bounds and certificates left to be placed."""
    exact_placements: int = 0
    """Of them, those that went to the integer program."""
    relaxed_not_placed: int = 0
    """Of these, those on a large pool that neither were placed nor proved impossible: 0 means the search was exact."""
    seconds: float = 0.0
    """By the clock that the caller gave; 0 without one."""


@dataclass(slots=True)
class Best:
    """The `top` best solutions of distinct shape, and the bound below which another one must be."""

    top: int
    solutions: list[Solution] = field(default_factory=list)
    ceiling: float = float("inf")
    """Only plans below it are looked for at the moment."""
    most_seconds: float = float("inf")
    """Only plans below it are looked for at all."""

    @property
    def bound(self) -> float:
        """A plan that is not below it is not wanted."""
        return min(self.ceiling, self.worst, self.most_seconds)

    @property
    def worst(self) -> float:
        """L_step of the last of the `top` best; infinite while there are fewer."""
        return self.solutions[-1].step_seconds if len(self.solutions) >= self.top else float("inf")

    def wants(self, step_seconds: float, shape: Shape) -> bool:
        """Whether a plan of this shape would be among the best."""
        known = next((s for s in self.solutions if s.shape == shape), None)
        return step_seconds < (self.bound if known is None else min(self.bound, known.step_seconds))

    def add(self, solution: Solution) -> None:
        """Keep a wanted solution, in the place of a slower one of its shape."""
        self.solutions = [s for s in self.solutions if s.shape != solution.shape]
        insort(self.solutions, solution)
        del self.solutions[self.top :]
