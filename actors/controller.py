"""The controller: several jobs on one cluster, each with a runner of its own and with devices that no other job has.

    submit, cancel, status          nodes of Ray, looks at the runners -> records -> allot -> runners started, offers

A detached actor on the head node. All that it must not forget is in its records, which it reads again after a death; its
jobs go on meanwhile.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any

from actors.asking import Asking
from actors.cluster import devices_of
from actors.launch import head_name
from actors.runner import Outcome
from actors.runners import Runners
from actors.served import Served
from actors.submission import Submission, name_of
from actors.views import device_counts, job_view, state_of
from nereus.errors import NereusError, UserError
from nereus.policy.allotting import Allotment, allot
from nereus.policy.grants import Ended, Grants, NodesSeen, Priced, Record, after
from nereus.runtime.locking import PATIENCE_S, held
from nereus.runtime.records import Records
from nereus.runtime.standing import Standing

CONTROLLER, CONTROLLER_API = "nereus-controller", "nereus-controller-api"
"""The names of its actors."""

CONTROLLER_LANES = {"ask": 1}
"""Questions are answered while it looks."""

RECORDS_FILE, LOCK_FILE = "grants.sqlite", "controller.lock"

LOOK_S = 1.0
"""Seconds between two looks: how soon a device that one job has left goes to the next."""

PRICE_EVERY_S = 30.0
"""Seconds between two predictions of what a running job would gain by devices: lengths change over minutes."""

CHANGED = 0.1
"""Relative change of a predicted step time from which it is recorded: below it no decision turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSpec:
    """What the controller is told when it is made."""

    folder: Path
    """Its records and the runs' folders, on the head node."""
    host: str
    """Where its API listens."""
    port: int
    token_file: Path | None
    """Tokens of the API, on the head node; None: loopback only."""
    min_devices: int
    """Devices that the cluster is asked to have however few are needed."""
    max_devices: int | None
    """Devices that it is asked for at most; None: as many as bring enough."""


class Controller:
    """Several jobs."""

    def __init__(self, spec: ControllerSpec) -> None:
        """Ray runs this again after a death."""
        self._spec = spec
        self._turn = Condition()
        self._grants = Grants()
        self._latest: dict[str, Allotment] = {}
        self._number = 0
        self._served = Served(CONTROLLER_API, CONTROLLER, spec.host, spec.port, spec.token_file)
        self._stopping = False
        self._failed: str | None = None
        self._failing_since_s: float | None = None
        self._asking = Asking(spec.min_devices, spec.max_devices)
        folder = spec.folder.expanduser().absolute()
        self._runners, self._records = Runners(folder), Records(folder / RECORDS_FILE)
        self._lock: IO[bytes] | None = None
        self._refused = self._opened(PATIENCE_S)
        Thread(target=self._look_for_ever, name="looks", daemon=True).start()

    def _opened(self, patience_s: float) -> UserError | None:
        """Read the records again; why they cannot be kept here, if so."""
        folder = self._runners.root
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = held(folder / LOCK_FILE, patience_s)
            self._records.open()
            known = [record for _, record in self._records.all()]
        except (OSError, sqlite3.Error, ValueError) as error:
            self._records.close()
            if self._lock is not None:
                self._lock.close()
                self._lock = None
            return UserError(f"--folder: {folder} cannot hold the controller's records: {error}; mend that, or give another")
        self._grants, self._number = after(self._grants, known), len(known)
        for job, claim in self._grants.claims.items():
            if claim.ended is not None:
                self._runners.bury(job)
        return None

    # What is asked of it

    def start(self) -> str:
        """Serve the API, once; returns where. Raises UserError for a folder, tokens or a host that cannot be."""
        self._check()
        return self._served.start()

    def _check(self) -> None:
        """Raises UserError while the records cannot be read: nothing is known, and nothing may be answered."""
        if self._refused is not None:
            raise self._refused

    def submit(self, submission: Submission) -> str:
        """Take a job in; the name that it has here."""
        with self._turn:
            self._check()
            name = name_of(submission.job.name, self._grants.claims)
            self._write(submission.record(name))
            self._turn.notify_all()
        return name

    def cancel(self, job: str, reason: str) -> bool:
        """End a job; whether there is one that was not over."""
        with self._turn:
            self._check()
            claim = self._grants.claims.get(job)
            if claim is None or claim.ended is not None:
                return False
            if claim.is_launched:
                self._runners.cancel(job, reason)
            else:
                self._write(Ended(job=job, state="cancelled", reason=reason))
                self._runners.bury(job)  # it may have been started, and that not been recorded yet
            self._turn.notify_all()
        return True

    def status(self) -> dict[str, Any]:
        """Everything, as plain values."""
        with self._turn:
            runners, latest = self._runners, self._latest
            return {
                "api": self._served.url,
                "folder": str(runners.root),
                "error": self._failed or self._served.failed,
                "devices": device_counts(self._grants, self._asking.latest),
                "jobs": [
                    job_view(claim, runners.looks.get(job), latest.get(claim.told.resource), runners.folder(claim))
                    for job, claim in self._grants.claims.items()
                ],
            }

    def outcome(self, job: str) -> tuple[str, str, Outcome | None] | None:
        """How a job ended: its state, the reason, and what its runner told; None while it is not over."""
        with self._turn:
            self._check()
            ended = self._grants.claims[job].ended
            return None if ended is None else (ended.state, ended.reason, self._runners.outcome(job))

    def granted(self, node: str) -> int:
        """How many devices of a node jobs have, those that they are leaving included."""
        with self._turn:
            self._check()
            living = [claim for claim in self._grants.claims.values() if claim.ended is None]
            return sum(seat.node == node for claim in living for seat in claim.seats.values())

    def standing(self) -> Standing:
        """What its API has to know."""
        with self._turn:
            claims, looks = self._grants.claims, self._runners.looks
            running = [claim for claim in claims.values() if claim.is_launched and claim.ended is None]
            since_s = self._failing_since_s
            return Standing(
                heads={claim.told.job: head_name(self._runners.folder(claim).name) for claim in running},
                jobs=Counter(state_of(claim, looks.get(job)) for job, claim in claims.items()),
                devices=device_counts(self._grants, self._asking.latest),
                failing_s=0.0 if since_s is None else time.monotonic() - since_s,
            )

    def stop(self) -> str | None:
        """End all jobs and the API; why that could not be recorded, if so. The actor itself is ended by whoever asks."""
        with self._turn:
            self._check()
            self._stopping = True
            claims = self._grants.claims
            for job in claims:
                self._runners.kill(job)
            living = [job for job, claim in claims.items() if claim.ended is None]
            try:
                self._write(*(Ended(job=job, state="cancelled", reason="the controller was stopped") for job in living))
            except NereusError as error:
                return str(error)
            finally:
                self._asking.withdraw()
                self._served.end()
        return None

    # What it does by itself

    def _look_for_ever(self) -> None:
        import ray

        anew = ray.get_runtime_context().was_current_actor_reconstructed
        while True:
            with self._turn:
                if self._stopping:
                    return
                try:
                    self._look()
                    self._served.keep(anew=anew)
                    self._failed = self._failing_since_s = None
                except Exception as error:
                    # One look that fails is told, and made again: jobs run on, and nothing was given that is not recorded.
                    self._failed = f"its last look failed: {type(error).__name__}: {error}"
                    if self._failing_since_s is None:
                        self._failing_since_s = time.monotonic()
                self._turn.wait(LOOK_S)

    def _look(self) -> None:
        """Mirror what is, then decide, then act."""
        if self._refused is not None:
            self._refused = self._opened(0.0)
            self._check()
        self._write(*self._runners.begun(self._grants))
        for kind in {*self._grants.nodes, *(c.told.resource for c in self._grants.claims.values() if c.ended is None)}:
            seen = NodesSeen(resource=kind, nodes=devices_of(kind))
            if self._grants.nodes.get(kind) != seen.nodes:
                self._write(seen)
        self._write(*self._runners.happened(self._grants))
        self._write(*self._priced())
        for kind in self._grants.nodes:
            used = self._runners.used()
            self._latest[kind] = allot(self._grants, kind, used)
            self._write(*self._latest[kind].records)
        for claim in self._grants.claims.values():
            if claim.is_running and not claim.is_launched:
                self._write(self._runners.launch(claim))
        self._runners.offer(self._grants, self._number)
        for kind in self._grants.nodes:
            self._asking.ask(self._grants, kind)

    def _priced(self) -> list[Record]:
        """Step times that are not what was predicted before."""
        found: list[Record] = []
        for job, seconds in self._runners.step_times(self._grants, PRICE_EVERY_S).items():
            if differs(self._grants.claims[job].seconds, seconds):
                found.append(Priced(job=job, seconds=seconds))
        return found

    def _write(self, *records: Record) -> None:
        """Record, then hold to be true. Raises NereusError for what cannot be recorded: then nothing has changed."""
        if not records:
            return
        grants = after(self._grants, records)
        try:
            self._number = self._records.append(time.time(), records)
        except sqlite3.Error as error:
            where = f"the controller's records in {self._runners.root} on its head node cannot be written: {error}"
            raise NereusError(f"{where}; free or mend that disk, then ask again") from None
        self._grants = grants


def differs(before: Mapping[int, float], now: Mapping[int, float]) -> bool:
    """Whether predictions changed by more than CHANGED."""
    return before.keys() != now.keys() or any(abs(now[n] - before[n]) > CHANGED * before[n] for n in now)
