"""The controller as a command sees it: found by its name, started, asked, and left behind.

living -> Office | None          opened(spec) -> Office: submit -> Watched job -> watch, outcome, cancel
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from actors.controller import CONTROLLER, CONTROLLER_LANES, Controller, ControllerSpec
from actors.options import head_options
from actors.runners import runner_name
from actors.submission import Submission
from nereus.control.effects import News
from nereus.errors import JobStopped, NereusError, UserError
from nereus.runtime.cluster_driver import Bounds
from nereus.runtime.summary import Summary

ANSWER_S = 60.0
"""Seconds to wait for the controller: after a death it is back in ten to thirty, and who stops it waits for a look, of 6."""

START_S = 120.0
"""Seconds until it must be up: its process imports what a head does, on a machine that may be busy."""

POLL_S = 0.3
"""Seconds between two looks at a job that is watched."""


@dataclass(frozen=True, slots=True)
class Office:
    """A controller that lives."""

    _handle: Any

    def ask(self, method: str, *args: Any) -> Any:
        """What it answers. Raises its own errors, and NereusError where it does not answer."""
        try:
            call = getattr(self._handle, method).options(concurrency_group="ask").remote(*args)
            return ray.get(call, timeout=ANSWER_S)
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, NereusError) else error) from None
        except (RayActorError, GetTimeoutError) as error:
            raise NereusError(f"the controller does not answer ({type(error).__name__}); ask again in a moment") from None

    def stop(self) -> str | None:
        """End its jobs, and itself; why that could not be recorded, if so."""
        unrecorded: str | None = self.ask("stop")
        ray.kill(self._handle)
        return unrecorded


def living() -> Office | None:
    """The controller of the connected cluster; None where there is none."""
    try:
        return Office(ray.get_actor(CONTROLLER))
    except ValueError:
        return None


def opened(spec: ControllerSpec) -> tuple[Office, str, bool]:
    """The controller of the connected cluster, started unless it lives: with where its API is, and whether it is new.

    Raises UserError for an API that cannot be served as it is asked for.
    """
    found = living()
    if found is not None:
        return found, found.ask("start"), False
    options = head_options(CONTROLLER_LANES, name=CONTROLLER, restarts=True)
    handle = ray.remote(**options)(Controller).options(lifetime="detached", get_if_exists=True).remote(spec)
    try:
        return Office(handle), ray.get(handle.start.options(concurrency_group="ask").remote(), timeout=START_S), True
    except (RayTaskError, RayActorError, GetTimeoutError) as error:
        ray.kill(handle)
        cause = error.cause if isinstance(error, RayTaskError) else None
        if isinstance(cause, NereusError):
            raise cause from None
        raise UserError(f"the controller did not start: {cause or error}; look at --folder, --host and --port") from None


@dataclass(slots=True)
class HandedOver:
    """A job that the controller has."""

    office: Office
    name: str

    @classmethod
    def of(cls, office: Office, submission: Submission) -> HandedOver:
        """Hand a job over."""
        return cls(office, office.ask("submit", submission))

    def view(self) -> dict[str, Any]:
        """What the controller tells of it."""
        jobs: list[dict[str, Any]] = self.office.ask("status")["jobs"]
        return next(job for job in jobs if job["job"] == self.name)

    def watch(self) -> Iterator[News | str]:
        """Yield what happens, and what it waits for, until it is over. A controller that restarts is waited for."""
        told, waits = 0, ""
        while True:
            over = self.office.ask("outcome", self.name) is not None
            fresh = self._feed(told)
            told += len(fresh)
            yield from fresh
            if over:
                return
            if not told:
                reason = str(self.view()["reason"])
                if reason and reason != waits:
                    yield reason
                waits = reason
            time.sleep(POLL_S)

    def summary(self) -> Summary:
        """The summary of the ended job. Raises the error that ended it otherwise."""
        state, reason, outcome = self.office.ask("outcome", self.name)
        if outcome is not None and outcome.summary is not None:
            summary: Summary = outcome.summary
            return summary
        if outcome is not None and outcome.error is not None:
            raise outcome.error
        if state == "finished":
            raise JobStopped(f"{self.name} finished, and its runner is gone; its summary is in {self.view()['folder']}")
        raise JobStopped(f"{self.name}: {state}: {reason}")

    def cancel(self, reason: str) -> None:
        """End it."""
        self.office.ask("cancel", self.name, reason)

    def _feed(self, told: int) -> list[News]:
        try:
            runner = ray.get_actor(runner_name(self.name))
            feed = runner.feed.options(concurrency_group="ask").remote(told)
            return list(ray.get(feed, timeout=ANSWER_S))
        except (ValueError, RayActorError, GetTimeoutError):
            return []


def spec_of(folder: Path, host: str, port: int, token_file: Path | None, least: int, most: int | None) -> ControllerSpec:
    """What a controller is told. Raises UserError for bounds that are none."""
    if most is not None and most < least:
        raise UserError(f"--max-devices: {most} is not allowed; it must be at least --min-devices, which is {least}")
    bounds = Bounds(least=least, most=most)
    return ControllerSpec(folder=folder, host=host, port=port, token_file=token_file, bounds=bounds)
