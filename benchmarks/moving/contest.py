"""What each way of moving state is asked to do, in every rank's process: fill, move on the clock, show the result.

prepare(job) -> [ barrier -> move() -> clock ] -> check() -> clear()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from benchmarks.moving.shapes import Shape
from benchmarks.moving.state import State

if TYPE_CHECKING:
    from benchmarks.moving.live import Work


@dataclass(frozen=True, slots=True)
class Job:
    """One transition, as one rank sees it."""

    rank: int
    source: Shape
    target: Shape
    state: State
    folder: str
    """An empty folder in memory, for those that go through files; whoever runs the job removes it."""
    work: Work
    """Nereus' own plan for this rank."""
    links: Mapping[tuple[int, int], int]
    """Bytes that Nereus moves, by (source rank, target rank)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank found after a move; only Nereus has a digest and a ledger."""

    wrong: tuple[str, ...] = ()
    """Keys of the tensors that are not, bit for bit, what they should be."""
    digest_s: float = 0.0
    peak_extra_bytes: int = 0
    seconds: float = 0.0
    """From the barrier to the end of `move` on this rank."""


class Contestant(Protocol):
    """A way of moving state. One thread of each rank's process calls it; every rank is called, those without state too."""

    def prepare(self, job: Job) -> None:
        """Hold the state in the source layout. Off the clock; may talk to other ranks."""

    def move(self) -> None:
        """Bring it into the target layout; returns when all of this rank's part is there. On the clock."""

    def check(self) -> Outcome:
        """Compare what arrived with the oracle."""

    def clear(self) -> None:
        """Let go of everything, on a failure too."""
