"""The ClusterDriver: records what is asked and seen, decides who has which device, and tells the jobs' runners.

    submit, cancel                       look: nodes, runners -> records -> allot -> records -> runners, offers, request

What a Driver is to one job, it is to the jobs of a cluster. What is decided is recorded before it is acted on, and a look
begins with what is seen, so that a death between any two lines loses nothing. Looks are made by one thread; the other verbs
are called by any, and wait for no look except `stop`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import IO

from nereus.control.offer import Offer
from nereus.emu.plan import DeviceId
from nereus.errors import NereusError, UserError
from nereus.policy.allotting import Allotment, allot, asked_for
from nereus.policy.grants import Claim, Ended, Grants, Launched, NodesSeen, Record, Submitted, after
from nereus.runtime.cluster_mirror import Looks, begun, happened, kept
from nereus.runtime.cluster_ports import NodesPort, Outcome, RunnersPort
from nereus.runtime.locking import held
from nereus.runtime.records import Records
from nereus.runtime.standing import Situation

RECORDS_FILE, LOCK_FILE = "grants.sqlite", "controller.lock"

LINGER_S = 15.0
"""Seconds that the runner of an ended job stays, so that whoever watches it reads its end."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Devices that the cluster is asked to have."""

    least: int = 0
    """However few are needed."""
    most: int | None = None
    """At most; None: as many as bring enough."""


class ClusterDriver:
    """The decisions about the jobs of one cluster, connected to it."""

    def __init__(
        self,
        folder: Path,
        nodes: NodesPort,
        runners: RunnersPort,
        bounds: Bounds,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`clock` dates the records, `monotonic` tells how long something lasts."""
        self.folder = folder
        self.failed: str | None = None
        """Why the latest look failed, if it did."""
        self._grants = Grants()
        self._nodes, self._runners, self._bounds = nodes, runners, bounds
        self._clock, self._monotonic = clock, monotonic
        self._records = Records(folder / RECORDS_FILE)
        self._recording, self._looking = Lock(), Lock()
        self._lock: IO[bytes] | None = None
        self._refused: UserError | None = UserError(f"the records in {folder} are not open yet; ask again in a moment")
        self._stopped = False
        self._number = 0
        self._looks: Looks = {}
        self._latest: dict[str, Allotment] = {}
        self._offers: dict[str, Offer] = {}
        self._requested: dict[str, int] = {}
        self._ended_s: dict[str, float] = {}
        self._buried: set[str] = set()
        self._failing_since_s: float | None = None

    def open(self, patience_s: float) -> None:
        """Read the records; where they cannot be kept, `check` says why, and the next look tries again."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = held(self.folder / LOCK_FILE, patience_s)
            self._records.open()
            known = [record for _, record in self._records.all()]
        except (OSError, sqlite3.Error, ValueError) as error:
            self.close()
            text = f"--folder: {self.folder} cannot hold the controller's records: {error}; mend that, or give another"
            self._refused = UserError(text)
        else:
            self._grants, self._number, self._refused = after(Grants(), known), len(known), None

    def close(self) -> None:
        """Let the folder go, as the end of the process does."""
        self._records.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # What is asked

    def check(self) -> None:
        """Raises UserError while the records cannot be read: nothing is known, and nothing may be answered."""
        if self._refused is not None:
            raise self._refused

    def submit(self, told: Submitted) -> str:
        """Take a job in, under its own name or with a number where another has had that; returns the name.

        One that comes again, since nobody heard the answer, has its name already.
        """
        with self._recording:
            self.check()
            known = next((claim.told.job for claim in self._grants.claims.values() if claim.told.id == told.id), None)
            if known is not None:
                return known
            names = (told.job, *(f"{told.job}-{number}" for number in range(2, len(self._grants.claims) + 3)))
            name = next(name for name in names if name not in self._grants.claims)
            self._write(replace(told, job=name))
        return name

    def cancel(self, job: str, reason: str) -> bool:
        """End a job; whether there is one that was not over."""
        with self._recording:
            self.check()
            claim = self._grants.claims.get(job)
            if claim is None or claim.ended is not None:
                return False
            if not claim.is_launched:
                self._write(Ended(job=job, state="cancelled", reason=reason))
        if claim.is_launched:
            self._runners.cancel(job, reason)
        return True

    def stop(self) -> str | None:
        """End all jobs, and look no more; why that could not be recorded, if so. Where it raises, it may be asked again."""
        with self._looking, self._recording:
            self.check()
            self._stopped = True
            self._nodes.request({})
            for job in self._attended():
                self._runners.kill(job)
            living = [job for job, claim in self._grants.claims.items() if claim.ended is None]
            try:
                self._write(*(Ended(job=job, state="cancelled", reason="the controller was stopped") for job in living))
            except NereusError as error:
                return str(error)
        return None

    def outcome(self, job: str) -> tuple[Ended, Outcome | None] | None:
        """How a job ended, and what its runner told, unless that is forgotten; None while it is not over."""
        self.check()
        ended, look = self._grants.claims[job].ended, self._looks.get(job)
        return None if ended is None else (ended, look.outcome if look is not None else None)

    @property
    def situation(self) -> Situation:
        """All that it knows now."""
        return Situation(grants=self._grants, looks=self._looks, allotments=self._latest, requested=self._requested)

    @property
    def failing_s(self) -> float:
        """Seconds for which looks have failed; 0 while they do not."""
        since_s = self._failing_since_s
        return 0.0 if since_s is None else self._monotonic() - since_s

    # What it does by itself

    def look(self) -> None:
        """Mirror what is, then decide, then act. One that fails is told, and made again: what was recorded stays so."""
        with self._looking:
            if self._stopped:
                return
            try:
                if self._refused is not None:
                    self.open(patience_s=0.0)
                    self.check()
                self._bury(self._mirror())
                self._decide()
                self._act()
            except Exception as error:
                self.failed = f"its last look failed: {type(error).__name__}: {error}"
                if self._failing_since_s is None:
                    self._failing_since_s = self._monotonic()
            else:
                self.failed = self._failing_since_s = None

    def _mirror(self) -> Looks:
        """Record what is seen; what runners told."""
        looks = self._runners.looks(self._attended())
        kinds = {*self._grants.nodes, *(c.told.resource for c in self._grants.claims.values() if c.ended is None)}
        seen = [NodesSeen(resource=kind, nodes=self._nodes.seen(kind)) for kind in sorted(kinds)]
        with self._recording:
            self._looks = kept(self._looks, looks, self._grants)
            self._write(*begun(self._grants, looks))
            self._write(*(one for one in seen if self._grants.nodes.get(one.resource) != one.nodes))
            self._write(*happened(self._grants, looks, self._offers))
        return looks

    def _attended(self) -> list[str]:
        """The jobs that may have a runner."""
        return [job for job, claim in self._grants.claims.items() if not claim.is_queued and job not in self._buried]

    def _bury(self, looks: Looks) -> None:
        """End the runners of jobs that are over: soon, where one told the end, at once where it does not know of it."""
        for job, look in looks.items():
            if self._grants.claims[job].ended is None:
                continue
            if look is None:
                self._buried.add(job)
                continue
            now_s = self._monotonic()
            if not self._told_its_end(job) or now_s - self._ended_s.setdefault(job, now_s) >= LINGER_S:
                self._runners.kill(job)

    def _told_its_end(self, job: str) -> bool:
        look = self._looks.get(job)
        return look is not None and look.outcome is not None

    def _decide(self) -> None:
        with self._recording:
            for kind in self._grants.nodes:
                self._latest[kind] = allot(self._grants, kind, self._used())
                self._write(*self._latest[kind].records)

    def _used(self) -> dict[str, frozenset[DeviceId]]:
        """The devices of each job on which units lie."""
        looks = self._looks.items()
        return {job: look.holdings.used for job, look in looks if look is not None and look.holdings is not None}

    def _act(self) -> None:
        for claim in [c for c in self._grants.claims.values() if c.is_running and not c.is_launched]:
            self._start(claim)
        with self._recording:
            grants, number = self._grants, self._number
        for claim in grants.launched():
            if claim.told.is_live:
                self._offer(claim, grants.notices(claim), number)
        numbers = {kind: asked_for(grants, kind, self._bounds.least, self._bounds.most) for kind in grants.nodes}
        if numbers != self._requested:
            self._nodes.request(numbers)
            self._requested = numbers

    def _start(self, claim: Claim) -> None:
        job = claim.told.job
        record: Launched | Ended = Launched(job=job)
        try:
            self._runners.start(claim)
        except NereusError as error:
            record = Ended(job=job, state="failed", reason=str(error))
        with self._recording:
            if self._grants.claims[job].ended is None:  # it may have been cancelled meanwhile: then the next look ends it
                self._write(record)

    def _offer(self, claim: Claim, leaving: Mapping[DeviceId, float | None], number: int) -> None:
        """Tell a job what it may use, as often as it takes until it has heard it. `number` grows with each record."""
        job, look = claim.told.job, self._looks.get(claim.told.job)
        offer, before = Offer(seats=claim.seats, leaving=leaving), self._offers.get(job)
        if before is None or replace(before, number=0) != offer:
            self._offers[job] = replace(offer, number=number)
        if look is None or look.holdings is None or look.holdings.heard != self._offers[job].number:
            self._runners.offer(job, self._offers[job])

    def _write(self, *records: Record) -> None:
        """Record, then hold to be true. Raises NereusError for what cannot be recorded: then nothing has changed."""
        if not records:
            return
        grants = after(self._grants, records)
        try:
            self._number = self._records.append(self._clock(), records)
        except sqlite3.Error as error:
            where = f"the controller's records in {self.folder} on its head node cannot be written: {error}"
            raise NereusError(f"{where}; free or mend that disk, then ask again") from None
        self._grants = grants
