"""A CPU device of a declared speed: a process that may use a fraction of a core.

Eight processes on two cores gain nothing from more devices. A paced device sleeps at every communication point until the
wall clock has caught up with thread CPU time / speed, so that adding devices really adds speed, as long as all of them
together stay below the cores that there are. What is emulated is compute speed only: waiting for others is never
stretched, and digests, transfers and set-up are not paced.

    segment: resume() .. compute .. settle() [sleeps] .. communicate .. resume() ..
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SHORTEST_SLEEP_S = 2e-4
"""Seconds: a shorter debt is carried to the next communication point, since a sleep overshoots by about 6e-5 s."""


@dataclass(frozen=True, slots=True)
class PaceReport:
    """What one run cost on one device, in seconds."""

    cpu_s: float
    """Thread CPU time of all segments."""
    declared_s: float
    """What the segments should have taken at the declared speed; 0 when unpaced."""
    late_s: float
    """By how much segments took longer than declared, because the machine did not give the process its share."""
    waited_s: float
    """Time inside communication."""
    wall_s: float

    @property
    def lateness(self) -> float:
        """late_s as a fraction of declared_s."""
        return self.late_s / self.declared_s if self.declared_s else 0.0


class Pacer:
    """Paces the thread that calls it. `speed` is a fraction of one core; None runs unpaced."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._owed_s = 0.0
        self._began = self._began_cpu = self._ran_from = 0.0
        self._cpu_s = self._late_s = self._waited_s = 0.0

    @contextmanager
    def run(self) -> Iterator[None]:
        """Pace what happens inside; `report` then tells about it."""
        self._cpu_s = self._late_s = self._waited_s = self._owed_s = 0.0
        self._ran_from = time.perf_counter()
        self._resume()
        try:
            yield
        finally:
            self._settle()

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Settle the segment before a collective, send or receive, and begin the next one after it."""
        self._settle()
        before = time.perf_counter()
        try:
            yield
        finally:
            self._waited_s += time.perf_counter() - before
            self._resume()

    @property
    def report(self) -> PaceReport:
        """What the last `run` cost."""
        declared = self._cpu_s / self._speed if self._speed else 0.0
        return PaceReport(self._cpu_s, declared, self._late_s, self._waited_s, time.perf_counter() - self._ran_from)

    def _resume(self) -> None:
        self._began, self._began_cpu = time.perf_counter(), time.thread_time()

    def _settle(self) -> None:
        cpu = time.thread_time() - self._began_cpu
        self._cpu_s += cpu
        if self._speed is None:
            return
        debt = self._owed_s + cpu / self._speed - (time.perf_counter() - self._began)
        if debt < SHORTEST_SLEEP_S:
            self._late_s += max(0.0, -debt)
            self._owed_s = max(0.0, debt)
            return
        before = time.perf_counter()
        time.sleep(debt)
        self._owed_s = debt - (time.perf_counter() - before)
