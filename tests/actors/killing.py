"""Kills processes of a run at moments of its journal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread

from tests.actors import journals
from tests.actors.processes import Process, descendants, named

Victims = Callable[[Iterable[Process]], list[Process]]
"""Who may be killed, of all processes of a run."""

the_head: Victims = partial(named, actor="Head")
the_planner: Victims = partial(named, actor="Planner")


@dataclass(frozen=True)
class Death:
    """A process that was killed."""

    victim: Process
    num_events: int
    """Events in the journal when it was."""


class RunEnded(Exception):
    """There is nobody left to kill."""


@dataclass
class Killer:
    """Kills processes of the run in a folder at moments of its journal, on a thread of its own."""

    folder: Path
    root: int = field(default_factory=os.getpid)
    """The process that has started the run."""
    deaths: list[Death] = field(default_factory=list)
    ended: Event = field(default_factory=Event)

    def in_step(self, step: int, delay_s: float, victims: Victims) -> None:
        """Kill a victim so long after the step before was reported."""
        self._wait(lambda: step - 1 in journals.steps(self.folder))
        time.sleep(delay_s)
        self._kill(victims)

    def in_transition_after(self, step: int, victims: Victims, answer: str = "Installed") -> None:
        """Kill a victim as soon as an endpoint has answered so in the transition at a step's boundary."""

        def is_moving() -> bool:
            steps = journals.steps(self.folder)
            return step in steps and answer in journals.kinds(self.folder)[steps.index(step) :]

        self._wait(is_moving)
        self._kill(victims)

    def when(self, condition: Callable[[], bool], victims: Victims) -> None:
        """Kill a victim as soon as something is so."""
        self._wait(condition)
        self._kill(victims)

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.ended.wait(0.002):
                raise RunEnded

    def _kill(self, victims: Victims) -> None:
        victim = victims(descendants(self.root))[0]
        os.kill(victim.pid, signal.SIGKILL)
        self.deaths.append(Death(victim, len(journals.kinds(self.folder))))


@contextmanager
def killing(folder: Path, script: Callable[[Killer], None]) -> Iterator[Killer]:
    """Carry out a script of deaths while the block runs."""
    killer = Killer(folder)

    def carry_out() -> None:
        with suppress(RunEnded):
            script(killer)

    thread = Thread(target=carry_out, daemon=True)
    thread.start()
    try:
        yield killer
    finally:
        killer.ended.set()
        thread.join()
