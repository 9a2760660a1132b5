"""The head actor: one Driver, its journal, and the loop's wait at the boundary.

    boundary lane: begin, boundary, lost [block until the release]      watch lane: feed, submit

It may die at any time: Ray starts it again, it recovers from its journal, and the loop asks again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Condition, Thread

import ray

from actors.completions import Completions
from actors.ports import RayPorts
from nereus.control.effects import News
from nereus.control.events import BoundaryReached, Event, JobStarted, OperatorAsked, PoolChanged, ReplanRequested, StepLost
from nereus.control.phases import Idle
from nereus.control.report import Release, StepReport
from nereus.control.resume import pending
from nereus.control.state import JobState
from nereus.emu.plan import DeviceId
from nereus.errors import JobStopped
from nereus.layout.catalog import EndpointId
from nereus.monitor.pool import PoolEmulator
from nereus.rl.describe import describe
from nereus.runtime.controller import Command, ReplanCommand
from nereus.runtime.driver import Driver
from nereus.runtime.journal import Journal
from nereus.runtime.ports import Ports
from nereus.spec.job import Job

HEAD_LANES = {"boundary": 1, "watch": 1}
"""One thread each: the loop waits in the first, everyone else asks in the second. The Driver has a thread of its own."""

JOURNAL_FILE = "journal.sqlite"


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What the head actor is told when it is made."""

    job: Job
    folder: Path
    devices: tuple[DeviceId, ...]
    """Devices at the start."""
    pool: PoolEmulator | None
    """How the pool changes; None when it does not."""
    loop: str
    """The name of the job actor."""
    planner: str
    """The name of the planner actor."""


class Head:
    """The controller of one job."""

    def __init__(self, spec: HeadSpec) -> None:
        """Ray runs this again after a death, so the Driver's thread starts here."""
        self._spec = spec
        self._inbox: Queue[Event] = Queue()
        self._answer = Condition()
        self._release: Release | None = None
        self._stopped: str | None = None
        self._news: Sequence[News] = ()
        Thread(target=self._drive, name="driver", daemon=True).start()

    def begin(self) -> Release:
        """Start the job's devices and first units; blocks until they are there."""
        return self._ask(JobStarted(devices=self._spec.devices), 0)

    def boundary(self, report: StepReport) -> Release:
        """Report a step and wait for the release. Asking again for the same step is harmless."""
        return self._ask(BoundaryReached(report=report), report.step)

    def lost(self, endpoint: EndpointId, during: str) -> Release:
        """The loop has seen a worker die in a step, and waits to do it again on what is left."""
        return self._ask(StepLost(endpoint=endpoint, during=during), 0)

    def submit(self, command: Command) -> None:
        """An operator's request."""
        self._inbox.put(
            ReplanRequested(command=command.id, dry_run=command.dry_run, forced=command.forced)
            if isinstance(command, ReplanCommand)
            else OperatorAsked(command=command.id, verb=command.verb)
        )

    def feed(self, after: int) -> Sequence[News]:
        """What happened since the first `after` news."""
        return self._news[after:]

    def _drive(self) -> None:
        """Open the journal, recover what it holds, and take in events until the process ends."""
        config = describe(self._spec.job)
        job, planner = ray.get_actor(self._spec.loop), ray.get_actor(self._spec.planner)
        completions = Completions(self._inbox.put)
        ports = RayPorts(config, job, planner, completions, self._on_release, self._on_stop)
        # A client on another machine has made the run's folder there, not here.
        self._spec.folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(self._spec.folder / JOURNAL_FILE)
        journal.open()
        driver = Driver(JobState(config=config), Ports(ports, ports, ports), journal, time.time)
        self._news = driver.news
        completions.start()
        driver.recover()
        if not isinstance(driver.state.phase, Idle):
            ports.adopt()
            driver.start(pending(driver.state))
        while True:
            event = self._inbox.get()
            try:
                driver.post(event)
            except Exception as error:
                # The loop waits for an answer: a controller that cannot go on says so rather than leave it waiting.
                self._on_stop(f"the controller failed on {type(event).__name__}: {type(error).__name__}: {error}")
                raise

    def _ask(self, event: Event, step: int) -> Release:
        with self._answer:
            self._release = None
        if isinstance(event, BoundaryReached):
            self._tell_pool(step)
        self._inbox.put(event)
        with self._answer:
            self._answer.wait_for(lambda: self._release is not None or self._stopped is not None)
            if self._stopped is not None:
                raise JobStopped(self._stopped)
            assert self._release is not None
            return self._release

    def _tell_pool(self, step: int) -> None:
        """What the emulated pool does at this boundary."""
        if self._spec.pool is None:
            return
        news = self._spec.pool.changes(step)
        if news.arriving or news.leaving or news.gone:
            self._inbox.put(
                PoolChanged(step=step, arriving=tuple(news.arriving), leaving=dict(news.leaving), gone=tuple(news.gone))
            )

    def _on_release(self, release: Release) -> None:
        with self._answer:
            self._release = release
            self._answer.notify_all()

    def _on_stop(self, reason: str) -> None:
        with self._answer:
            self._stopped = reason
            self._answer.notify_all()
