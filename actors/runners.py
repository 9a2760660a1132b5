"""The runners of a controller: started, looked at, told what they may use, and ended.

claims -> launch, offer, cancel          looks -> Freed, Ended
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import ray
from pydantic import ValidationError
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from actors.launch import Footing
from actors.options import head_options
from actors.runner import RUNNER_LANES, Look, Outcome, Runner, RunnerSpec
from actors.submission import assignment_of, folder_of
from nereus.control.offer import Offer
from nereus.emu.plan import DeviceId
from nereus.policy.grants import Claim, Ended, Freed, Grants, Launched, Record

LOOK_TIMEOUT_S = 6.0
"""Seconds for all runners to answer: each waits 5 for its head at most; one that is late is looked at the next time."""

LINGER_S = 15.0
"""Seconds that the runner of an ended job stays, so that whoever watches it reads its end."""

DIED = "the process of its runner died, and all of the job's with it; run it again with --resume if it has a checkpoint"


def runner_name(job: str) -> str:
    """The name of a job's runner."""
    return f"runner/{job}"


class Runners:
    """All of them. Used under the controller's lock."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the controller's."""
        self.root = folder
        self.looks: dict[str, Look] = {}
        """The latest of each job."""
        self._offers: dict[str, Offer] = {}
        self._prices: dict[str, Any] = {}
        self._priced_s: dict[str, float] = {}
        self._ended_s: dict[str, float] = {}

    def folder(self, claim: Claim) -> Path:
        """The run's folder."""
        return folder_of(self.root, claim)

    def begun(self, grants: Grants) -> list[Record]:
        """The jobs whose runner was started by a controller that died before it had recorded that."""
        granted = [claim for claim in grants.claims.values() if claim.is_running and not claim.is_launched]
        return [Launched(job=claim.told.job) for claim in granted if _handle(claim.told.job) is not None]

    def launch(self, claim: Claim) -> Launched | Ended:
        """Start a job's processes on the devices that it has; it makes no second runner of one that is there."""
        folder = self.folder(claim)
        try:
            told = assignment_of(claim)
            folder.mkdir(parents=True, exist_ok=True)
        except ValidationError as error:
            reason = f"this version cannot read its job as another one recorded it: {error}; hand it over again"
            return Ended(job=claim.told.job, state="failed", reason=reason)
        except OSError as error:
            return Ended(job=claim.told.job, state="failed", reason=f"its folder cannot be made on the head node: {error}")
        gpu = claim.told.resource == "GPU"
        footing = Footing(
            seats=claim.seats,
            takes={"num_gpus": 1} if gpu else {"resources": {claim.told.resource: 1}},
            is_live=claim.told.is_live,
            is_alone=False,
        )
        options = head_options(RUNNER_LANES, name=runner_name(claim.told.job))
        spec = RunnerSpec(told.job, folder, footing, told.checkpoint)
        ray.remote(**options)(Runner).options(lifetime="detached", get_if_exists=True).remote(spec)
        return Launched(job=claim.told.job)

    def happened(self, grants: Grants) -> list[Record]:
        """What the runners tell: devices that were left, jobs that ended."""
        self._bury(grants)
        running = [claim for claim in grants.claims.values() if claim.is_launched and claim.ended is None]
        calls, found = dict[Any, Claim](), list[Record]()
        for claim in running:
            handle = _handle(claim.told.job)
            if handle is None:
                found.append(Ended(job=claim.told.job, state="failed", reason=DIED))
                continue
            calls[handle.look.options(concurrency_group="ask").remote()] = claim
        ready = ray.wait(list(calls), num_returns=len(calls), timeout=LOOK_TIMEOUT_S)[0] if calls else []
        for call in ready:
            claim = calls[call]
            try:
                look: Look = ray.get(call)
            except ActorUnavailableError:
                continue  # whether it lives, the next look tells
            except RayActorError:
                look = Look(None, Outcome("failed", DIED))
            except RayError as error:
                look = Look(None, Outcome("failed", f"its runner does not answer: {error}"))
            # The last holdings that were told are kept: they say how far a job came that is over.
            before = self.looks.get(claim.told.job, look)
            self.looks[claim.told.job] = replace(look, holdings=look.holdings or before.holdings)
            found += self._told(grants, claim, look)
        return found

    def _told(self, grants: Grants, claim: Claim, look: Look) -> list[Record]:
        job, sent = claim.told.job, self._offers.get(claim.told.job)
        if look.outcome is not None:
            self._ended_s[job] = time.monotonic()
            return [Ended(job=job, state=look.outcome.state, reason=look.outcome.reason)]
        if look.holdings is None or sent is None or look.holdings.heard != sent.number:
            return []
        has = look.holdings.seats
        left = tuple(sorted(place for place in grants.notices(claim) if place in sent.leaving and place not in has))
        return [Freed(job=job, places=left)] if left else []

    def used(self) -> dict[str, frozenset[DeviceId]]:
        """The devices of each job on which units lie."""
        return {job: look.holdings.used for job, look in self.looks.items() if look.holdings is not None}

    def offer(self, grants: Grants, number: int) -> None:
        """Tell jobs what they may use, as often as it takes until they have heard it. `number` grows with each record."""
        for claim in grants.claims.values():
            job = claim.told.job
            if not claim.is_launched or claim.ended is not None or not claim.told.is_live:
                continue
            offer, before = Offer(seats=claim.seats, leaving=grants.notices(claim)), self._offers.get(job)
            if before is None or replace(before, number=0) != offer:
                self._offers[job] = replace(offer, number=number)
            look = self.looks.get(job)
            if look is None or look.holdings is None or look.holdings.heard != self._offers[job].number:
                handle = _handle(job)
                if handle is not None:
                    handle.offer.options(concurrency_group="ask").remote(self._offers[job])

    def step_times(self, grants: Grants, every_s: float) -> dict[str, Mapping[int, float]]:
        """Predictions that are there by now; new ones are asked for every so many seconds. Waits for none."""
        found: dict[str, Mapping[int, float]] = {}
        for claim in grants.claims.values():
            job, now_s = claim.told.job, time.monotonic()
            if not claim.is_launched or claim.ended is not None or not claim.told.is_live:
                self._prices.pop(job, None)
                continue
            asked = self._prices.get(job)
            if asked is not None and ray.wait([asked], timeout=0)[0]:
                del self._prices[job]
                try:
                    seconds: Mapping[int, float] | None = ray.get(asked)
                except RayError:
                    seconds = None
                if seconds:
                    found[job] = seconds
            elif asked is None and now_s - self._priced_s.setdefault(job, now_s) >= every_s:
                self._priced_s[job] = now_s
                handle = _handle(job)
                if handle is not None:
                    self._prices[job] = handle.step_times.options(concurrency_group="price").remote()
        return found

    def cancel(self, job: str, reason: str) -> None:
        """Have a job end; its outcome follows."""
        handle = _handle(job)
        if handle is not None:
            handle.cancel.options(concurrency_group="ask").remote(reason)

    def kill(self, job: str) -> None:
        """End a job's processes now."""
        handle = _handle(job)
        if handle is not None:
            ray.kill(handle)

    def outcome(self, job: str) -> Outcome | None:
        """How a job ended, as its runner told it; None while it runs, or once its runner is forgotten."""
        look = self.looks.get(job)
        return look.outcome if look is not None else None

    def bury(self, job: str) -> None:
        """End the runner of a job that is over, if there is one, with the next look."""
        self._ended_s[job] = -inf

    def _bury(self, grants: Grants) -> None:
        """End the runners of jobs that ended a while ago; one whose end is not recorded yet has still to tell it."""
        for job, ended_s in list(self._ended_s.items()):
            if grants.claims[job].ended is not None and time.monotonic() - ended_s > LINGER_S:
                self.kill(job)
                del self._ended_s[job]


def _handle(job: str) -> Any:
    """The handle of a job's runner; None when there is none. Raises GetTimeoutError while Ray does not say."""
    try:
        return ray.get_actor(runner_name(job))
    except ValueError:
        return None
