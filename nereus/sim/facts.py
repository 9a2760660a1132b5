"""The facts that are on their way in virtual time: a heap of (time, order of posting, event).

A simulated controller never dies, and its scenario says it all again: what happened is counted, not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from nereus.control.effects import Effect
from nereus.control.events import Event
from nereus.runtime.journal import Entry


class Facts:
    """A clock, and what will be posted when it gets there."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._heap: list[tuple[float, int, Event]] = []
        self._order = count()

    def clock(self) -> float:
        """Virtual seconds since the start."""
        return self.now_s

    def post(self, after_s: float, event: Event) -> None:
        """Something becomes a fact in so many seconds."""
        heappush(self._heap, (self.now_s + after_s, next(self._order), event))

    def next(self, until_s: float = float("inf")) -> Event | None:
        """The next fact up to a time, and the clock with it; None when there is none, with the clock left alone."""
        if not self._heap or self._heap[0][0] > until_s:
            return None
        time_s, _, event = heappop(self._heap)
        self.now_s = max(self.now_s, time_s)
        return event

    def clear(self) -> None:
        """Nobody waits for these any more."""
        self._heap.clear()


class Unwritten:
    """A journal that keeps nothing: hashing what a large job asks for takes longer than deciding it."""

    def __init__(self) -> None:
        self._count = 0

    def append(self, at_s: float, event: Event) -> int:
        """See JournalPort."""
        self._count += 1
        return self._count

    def acted(self, seq: int, effects: tuple[Effect, ...]) -> None:
        """See JournalPort."""

    def entries(self) -> Iterator[Entry]:
        """See JournalPort."""
        return iter(())
