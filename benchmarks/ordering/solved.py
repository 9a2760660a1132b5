"""What a solver says."""

from __future__ import annotations

from typing import NamedTuple


class Solved(NamedTuple):
    """Its status, and the shortest makespan that it found."""

    status: str
    """`optimal`, `feasible`, `infeasible` (proved) or `limit` (nothing found within the time)."""
    seconds: float | None
