"""A cluster without processes: nodes, and runners that do as jobs do. Its calls can be made to fail, each by its number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from nereus.control.offer import Holdings, Offer
from nereus.emu.plan import DeviceId
from nereus.errors import NereusError
from nereus.policy.grants import Claim, Submitted
from nereus.policy.seating import Node, PoolDevice, Shape
from nereus.runtime.cluster_driver import Bounds, ClusterDriver
from nereus.runtime.cluster_ports import Look, Outcome

KIND = "nereus_device"

REQUESTS = count()
"""No two are the same."""


class Dies(BaseException):
    """The controller's process ends in the middle of a call."""


@dataclass
class FakeRunner:
    """One job's: it has devices, hears of offers in the order in which they were sent, and leaves devices, when made to."""

    seats: dict[DeviceId, PoolDevice]
    inbox: list[Offer] = field(default_factory=list)
    told: Offer | None = None
    heard: int = 0
    is_late: bool = False
    outcome: Outcome | None = None
    seconds: Mapping[int, float] | None = None

    def hears(self) -> None:
        """Hear the next offer, and take what it adds. What must be left is left later."""
        if self.inbox:
            self.told = offer = self.inbox.pop(0)
            self.heard = offer.number
            stays = {place: seat for place, seat in offer.seats.items() if place not in offer.leaving}
            self.seats = {place: seat for place, seat in {**self.seats, **stays}.items() if place in offer.seats}

    def leaves(self) -> None:
        """Leave what must be left, by the latest offer that was heard."""
        if self.told is not None:
            self.seats = {place: seat for place, seat in self.seats.items() if place not in self.told.leaving}

    def obeys(self) -> None:
        """Hear all offers and do what they say."""
        while self.inbox:
            self.hears()
        self.leaves()

    def look(self) -> Look:
        if self.is_late:
            return Look()
        if self.outcome is not None:
            return Look(outcome=self.outcome)
        used = frozenset(self.seats)
        holdings = Holdings(seats=dict(self.seats), heard=self.heard, used=used, step=1, epoch=0, phase="Steady")
        return Look(holdings=holdings, seconds=self.seconds)


@dataclass
class FakeCluster:
    """Both ports. `fails_at` counts down calls; the one that finds it at 0 fails, before or after it has done its work."""

    nodes: dict[str, Node] = field(default_factory=dict)
    runners: dict[str, FakeRunner] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    """Jobs that cannot be started."""
    requested: Mapping[str, int] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fails_at: int | None = None
    fails_with: type[BaseException] = ConnectionError
    fails_after: bool = False
    """Whether the work of the failing call is done all the same."""

    def seen(self, resource: str) -> tuple[Node, ...]:
        self._called("seen")
        self._done()
        return tuple(self.nodes.values()) if resource == KIND else ()

    def request(self, numbers: Mapping[str, int]) -> None:
        self._called("request")
        self.requested = dict(numbers)
        self._done()

    def start(self, claim: Claim) -> None:
        self._called("start")
        job = claim.told.job
        if job in self.refused:
            raise NereusError(f"{job} cannot be started")
        self._assert_nobody_else_has(job, claim.seats)
        if job not in self.runners:
            self.started.append(job)
            self.runners[job] = FakeRunner(dict(claim.seats))
        self._done()

    def looks(self, jobs: Collection[str]) -> Mapping[str, Look | None]:
        self._called("looks")
        self._done()
        return {job: self.runners[job].look() if job in self.runners else None for job in jobs}

    def offer(self, job: str, offer: Offer) -> None:
        self._called("offer")
        self._assert_nobody_else_has(job, offer.seats)
        if job in self.runners:
            self.runners[job].inbox.append(offer)
        self._done()

    def cancel(self, job: str, reason: str) -> None:
        self._called("cancel")
        if job in self.runners:
            self.runners[job].outcome = Outcome("cancelled", reason)
        self._done()

    def kill(self, job: str) -> None:
        self._called("kill")
        self.runners.pop(job, None)
        self._done()

    def a_node_goes(self, name: str) -> None:
        """And with it what was on it."""
        del self.nodes[name]
        for runner in self.runners.values():
            runner.seats = without(runner.seats, name)
            runner.inbox = [replace(offer, seats=without(offer.seats, name)) for offer in runner.inbox]

    def _assert_nobody_else_has(self, job: str, seats: Mapping[DeviceId, PoolDevice]) -> None:
        """Whatever the records say: no other runner that goes on is on these devices."""
        for other, runner in self.runners.items():
            assert other == job or runner.outcome or not set(seats.values()) & set(runner.seats.values()), (job, other)

    def _called(self, verb: str) -> None:
        self.calls.append(verb)
        if self.fails_at == 0 and not self.fails_after:
            self._fail()

    def _done(self) -> None:
        if self.fails_at == 0:
            self._fail()
        if self.fails_at is not None:
            self.fails_at -= 1

    def _fail(self) -> None:
        self.fails_at = None
        raise self.fails_with("in the middle of a call")


def without(seats: Mapping[DeviceId, PoolDevice], node: str) -> dict[DeviceId, PoolDevice]:
    """The seats on other nodes: nobody can start a worker on one that is gone."""
    return {place: seat for place, seat in seats.items() if seat.node != node}


class Clock:
    """Seconds, as a test lets them pass."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def driver_of(folder: Path, cluster: FakeCluster, clock: Clock, bounds: Bounds | None = None) -> ClusterDriver:
    """A driver whose records are open, if they can be."""
    made = ClusterDriver(folder, cluster, cluster, bounds or Bounds(), clock, clock)
    made.open(patience_s=0.0)
    return made


def submitted(job: str, shape: Shape, needed: int, *, is_live: bool = True, power: float = 1.0) -> Submitted:
    """A job whose step takes n ** -power seconds on n devices, and that can run on one."""
    places = shape.places
    return Submitted(
        id=str(next(REQUESTS)),
        job=job,
        resource=KIND,
        shape=shape,
        needed=places[:needed],
        wanted=places if is_live else places[:needed],
        is_live=is_live,
        seconds={number: number**-power for number in range(1, len(places) + 1)},
        stamp="20260101-000000",
        body="{}",
    )


def one(job: str, *, is_live: bool = False) -> Submitted:
    """A job of one device."""
    return submitted(job, Shape(1, 1, False), 1, is_live=is_live)
