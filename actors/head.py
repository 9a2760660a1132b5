"""The head actor: one Driver, its journal, and the loop's wait at the boundary.

    boundary lane: begin, boundary, lost [block until the release]      watch lane: feed, submit, offer, holdings

It may die at any time: Ray starts it again, it recovers from its journal, and the loop asks again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Condition, Thread

import ray

from actors.cluster import ground, shape_of
from actors.completions import Completions
from actors.ports import RayPorts, call_watch
from nereus.control.checkpoint import Checkpoint
from nereus.control.core import is_new
from nereus.control.effects import News
from nereus.control.events import BoundaryReached, Event, JobStarted, OperatorAsked, PoolChanged, ReplanRequested, StepLost
from nereus.control.offer import Holdings, Offer, offer_of_all, pool_change, seats_after, used
from nereus.control.phases import Idle, Starting, Waiting
from nereus.control.report import Release, StepReport
from nereus.control.resume import pending
from nereus.control.state import JobState
from nereus.emu.plan import DeviceId
from nereus.errors import JobStopped
from nereus.layout.catalog import EndpointId
from nereus.monitor.pool import PoolEmulator
from nereus.policy.seating import Seats
from nereus.policy.snapshot import Snapshot
from nereus.rl.describe import describe
from nereus.runtime.checkpoints import root_of
from nereus.runtime.controller import Command, ReplanCommand
from nereus.runtime.driver import Driver
from nereus.runtime.journal import Journal
from nereus.runtime.ports import Ports
from nereus.spec.job import Job

HEAD_LANES = {"boundary": 1, "watch": 1}
"""One thread each: the loop waits in the first, everyone else asks in the second. The Driver has a thread of its own."""

JOURNAL_FILE = "journal.sqlite"

LOOK_S = 0.5
"""Seconds between two looks at what a job may use, while nothing else happens: what it has left is free that soon."""

POOL_STEP_S = 1.0
"""Seconds that count as a step of an emulated pool while the job waits for a plan: about as long as a step of a small job;
at none, a schedule would run out before anybody sees it."""


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What the head actor is told when it is made."""

    job: Job
    folder: Path
    devices: tuple[DeviceId, ...]
    """Devices at the start."""
    seats: Seats
    """Where they are."""
    is_live: bool
    """Whether the pool follows the nodes of a cluster that is not the job's own."""
    is_alone: bool
    """Whether a live job has that cluster to itself, and looks at its nodes; if not, it is told what it may use."""
    pool: PoolEmulator | None
    """How an emulated pool changes; None when it does not."""
    loop: str
    """The name of the job actor."""
    planner: str
    """The name of the planner actor."""
    checkpoint: Checkpoint | None = None
    """What the run goes on from; None for one that begins."""


class Head:
    """The controller of one job."""

    def __init__(self, spec: HeadSpec) -> None:
        """Ray runs this again after a death, so the Driver's thread starts here."""
        self._spec = spec
        self._inbox: Queue[Event | None] = Queue()
        self._answer = Condition()
        self._release: Release | None = None
        self._stopped: str | None = None
        self._news: Sequence[News] = ()
        self._offer: Offer | None = None
        self._told: Seats = {}
        self._becoming: Seats = {}
        self._heard = 0
        self._looked_s = -LOOK_S
        self._driver: Driver | None = None
        Thread(target=self._drive, name="driver", daemon=True).start()

    def begin(self) -> Release:
        """Start the job's devices and first units; blocks until they are there."""
        return self._ask(JobStarted(devices=self._spec.devices, checkpoint=self._spec.checkpoint))

    def boundary(self, report: StepReport, followed: int) -> Release:
        """Report a step and wait for the release. Asking again for the same step is harmless."""
        return self._ask(BoundaryReached(report=report, followed=followed))

    def lost(self, endpoint: EndpointId, during: str) -> Release:
        """The loop has seen a worker die in a step, and waits to do it again on what is left."""
        return self._ask(StepLost(endpoint=endpoint, during=during))

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

    def offer(self, offer: Offer) -> None:
        """What the job may use from now on; the latest counts."""
        self._offer = offer
        self._inbox.put(None)

    def holdings(self) -> Holdings | None:
        """What the job has; None before its journal is read."""
        if self._driver is None:
            return None
        state = self._driver.state
        phase = type(state.phase).__name__
        return Holdings(
            seats=self._told, heard=self._heard, used=used(state), step=state.step, epoch=state.plan.epoch, phase=phase
        )

    def snapshot(self) -> Snapshot | None:
        """All that a decision would be taken on now; None before the first plan is in force."""
        if self._driver is None or self._driver.state.reference is None:
            return None
        return self._driver.state.snapshot

    def _drive(self) -> None:
        """Open the journal, recover what it holds, and take in events until the process ends."""
        config = describe(self._spec.job, is_live=self._spec.is_live)
        job, planner = ray.get_actor(self._spec.loop), ray.get_actor(self._spec.planner)
        completions = Completions(self._inbox.put)
        root = root_of(self._spec.job.checkpoint.folder, self._spec.folder)
        ports = RayPorts(config, root, self._spec.folder.name, job, planner, completions, self._on_release, self._on_stop)
        # A client on another machine has made the run's folder there, not here.
        self._spec.folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(self._spec.folder / JOURNAL_FILE)
        journal.open()
        driver = Driver(JobState(config=config), Ports(ports, ports, ports, ports), journal, time.time)
        self._news = driver.news
        completions.start()
        driver.recover()
        self._told = {device: seat for device, seat in self._spec.seats.items() if device in self._spec.devices}
        if not isinstance(driver.state.phase, Idle):
            known = {*driver.state.endpoint_of, *driver.state.starting, *driver.state.broken}
            self._told = {device: seat for device, seat in self._seats().items() if device in known}
            ports.adopt()
            driver.start(pending(driver.state))
        self._driver = driver
        event: Event | None = None
        while True:
            try:
                for event in self._coming(driver.state):
                    driver.post(event)
                    if self._spec.is_live and isinstance(event, PoolChanged):
                        # Only now: what it has left is in its journal, and the worker there is being ended.
                        self._told = self._becoming
            except Exception as error:
                # The loop waits for an answer: a controller that cannot go on says so rather than leave it waiting.
                self._on_stop(f"the controller failed after {type(event).__name__}: {type(error).__name__}: {error}")
                raise

    def _coming(self, state: JobState) -> tuple[Event, ...]:
        """What happens next; a pool changes before a boundary is told, and goes on while the job waits for it."""
        pool = self._spec.pool
        if self._spec.is_live:
            return self._live(state)
        try:
            event = self._inbox.get(timeout=POOL_STEP_S if pool is not None and waits_for_pool(state) else None)
        except Empty:
            assert pool is not None
            return (pool.changed(state.step, state.pool_ahead + 1),)
        if event is None:
            return ()
        if pool is not None and isinstance(event, BoundaryReached) and is_new(state, event):
            news = pool.changed(event.report.step, state.pool_ahead)
            if news.arriving or news.leaving or news.gone:
                return news, event
        return (event,)

    def _live(self, state: JobState) -> tuple[Event, ...]:
        """What happens next where offers tell of the pool; what has changed in it comes first."""
        event: Event | None = None
        with suppress(Empty):
            event = self._inbox.get(timeout=LOOK_S)
        if self._spec.is_alone and time.monotonic() - self._looked_s >= LOOK_S:
            # Not with each event: a transition has hundreds, and asking for the nodes takes milliseconds.
            self._offer, self._looked_s = self._seen(), time.monotonic()
        change, offer = None, self._offer
        if offer is not None:
            change = pool_change(state, self._told, offer, time.time())
        if change is not None and offer is not None:
            arriving = {place: offer.seats[place] for place in change.arriving}
            if arriving:
                ray.get(call_watch(ray.get_actor(self._spec.loop), "seat", arriving))
            self._becoming = seats_after(self._told, change, offer)
        elif offer is not None and not isinstance(state.phase, Idle | Starting):
            self._heard = offer.number
        return tuple(one for one in (change, event) if one is not None)

    def _seen(self) -> Offer:
        """What the nodes of the cluster offer now."""
        job = self._spec.job
        shape = shape_of(job.cluster)
        wanted = set(shape.places).difference(job.absent)
        return offer_of_all(shape, self._told, ground(job.cluster).nodes, wanted)

    def _seats(self) -> Seats:
        seats: Seats = ray.get(call_watch(ray.get_actor(self._spec.loop), "seats"))
        return seats

    def _ask(self, event: Event) -> Release:
        with self._answer:
            self._release = None
        self._inbox.put(event)
        with self._answer:
            self._answer.wait_for(lambda: self._release is not None or self._stopped is not None)
            if self._stopped is not None:
                raise JobStopped(self._stopped)
            assert self._release is not None
            return self._release

    def _on_release(self, release: Release) -> None:
        with self._answer:
            self._release = release
            self._answer.notify_all()

    def _on_stop(self, reason: str) -> None:
        with self._answer:
            self._stopped = reason
            self._answer.notify_all()


def waits_for_pool(state: JobState) -> bool:
    """Whether the job stands still until the pool changes."""
    return isinstance(state.phase, Waiting) and not state.starting and not state.pool_ended
