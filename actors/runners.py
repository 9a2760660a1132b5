"""The runners of a controller, as actors: started, looked at, told, and ended. A RunnersPort."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ray
from pydantic import ValidationError
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from actors.launch import Footing
from actors.options import head_options
from actors.runner import RUNNER_LANES, Runner, RunnerSpec
from actors.submission import assignment_of
from nereus.control.offer import Offer
from nereus.errors import NereusError
from nereus.policy.grants import Claim
from nereus.runtime.cluster_mirror import DIED
from nereus.runtime.cluster_ports import Look, Outcome
from nereus.runtime.standing import run_folder

LOOK_TIMEOUT_S = 6.0
"""Seconds for all runners to answer: each waits 5 for its head at most; one that is late is looked at the next time."""


def runner_name(job: str) -> str:
    """The name of a job's runner."""
    return f"runner/{job}"


class Runners:
    """All of them."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the controller's."""
        self._folder = folder

    def start(self, claim: Claim) -> None:
        """Start a job's processes on the devices that it has; it makes no second runner of one that is there."""
        folder = run_folder(self._folder, claim)
        try:
            told = assignment_of(claim)
            folder.mkdir(parents=True, exist_ok=True)
        except ValidationError as error:
            raise NereusError(
                f"this version cannot read its job as another one recorded it: {error}; hand it over again"
            ) from None
        except OSError as error:
            raise NereusError(f"its folder cannot be made on the head node: {error}") from None
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

    def looks(self, jobs: Collection[str]) -> Mapping[str, Look | None]:
        """What the runner of each job tells; None where there is none."""
        found: dict[str, Look | None] = {}
        calls: dict[Any, str] = {}
        for job in jobs:
            handle = _handle(job)
            if handle is None:
                found[job] = None
            else:
                calls[handle.look.options(concurrency_group="ask").remote()] = job
        ready = set(ray.wait(list(calls), num_returns=len(calls), timeout=LOOK_TIMEOUT_S)[0]) if calls else set()
        return {**found, **{job: self._told(job, call) if call in ready else Look() for call, job in calls.items()}}

    def offer(self, job: str, offer: Offer) -> None:
        """Tell a job what it may use."""
        handle = _handle(job)
        if handle is not None:
            handle.offer.options(concurrency_group="ask").remote(offer)

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

    def _told(self, job: str, call: Any) -> Look:
        """What a runner has answered."""
        try:
            look: Look = ray.get(call)
        except ActorUnavailableError:
            return Look()  # whether it lives, the next look tells
        except RayActorError:
            return Look(outcome=Outcome("failed", DIED))
        except RayTaskError as error:
            self.kill(job)  # it does not know of an end, and its devices go to others
            return Look(outcome=Outcome("failed", f"its runner failed: {error}"))
        except RayError:
            return Look()
        return look


def _handle(job: str) -> Any:
    """The handle of a job's runner; None when there is none. Raises GetTimeoutError while Ray does not say."""
    try:
        return ray.get_actor(runner_name(job))
    except ValueError:
        return None
