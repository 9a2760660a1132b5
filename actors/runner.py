"""The runner: one job of the controller, in a process that outlives a restart of it.

controller --offer, cancel--> Runner [rendezvous, job, planner, head] --look: holdings, outcome--> controller

It owns all actors of its job, so that they end with it; it is found again by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from actors.launch import Footing, Launched, first_weights, started
from nereus.control.checkpoint import Checkpoint
from nereus.control.effects import News
from nereus.control.offer import Holdings, Offer
from nereus.errors import NereusError
from nereus.policy.sharing import step_times
from nereus.policy.snapshot import Snapshot
from nereus.runtime.event_log import event_dict
from nereus.runtime.summary import Summary
from nereus.spec.job import Job

RUNNER_LANES = {"ask": 1, "price": 1}
"""Looks and offers in one thread, searches that may take seconds in another."""

ANSWER_S = 5.0
"""Seconds to wait for the job's head: it answers in milliseconds, and one that restarts is asked again."""


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """What a runner is told when it is made."""

    job: Job
    folder: Path
    """The run's folder, on the head node."""
    footing: Footing
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    state: str
    """`finished`, `failed` or `cancelled`."""
    reason: str
    summary: Summary | None = None
    """Of a finished job."""
    error: NereusError | None = None
    """Of a failed one, where it was one of ours."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a runner tells of its job."""

    holdings: Holdings | None
    """None while its head starts, or does not answer."""
    outcome: Outcome | None
    """None while it runs."""


class Runner:
    """One job."""

    def __init__(self, spec: RunnerSpec) -> None:
        self._spec = spec
        self._run: Launched | None = None
        self._news: list[News] = []
        self._outcome: Outcome | None = None
        self._cancelled: str | None = None
        Thread(target=self._drive, name="job", daemon=True).start()

    def look(self) -> Look:
        """What the job has, or how it ended."""
        if self._outcome is not None:
            return Look(None, self._outcome)
        holdings: Holdings | None = self._ask("holdings")
        return Look(holdings, None)

    def offer(self, offer: Offer) -> None:
        """What the job may use from now on."""
        self._ask("offer", offer)

    def feed(self, after: int) -> Sequence[News]:
        """What happened since the first `after` news."""
        return self._news[after:]

    def cancel(self, reason: str) -> None:
        """End the job; its outcome says so once its processes are gone."""
        self._cancelled = reason

    def step_times(self) -> Mapping[int, float] | None:
        """Predicted L_step by number of devices, on what the job has learnt; None where that is not to be had now."""
        snapshot: Snapshot | None = self._ask("snapshot")
        if snapshot is None:
            return None
        job = self._spec.job
        places = tuple(place for place in range(job.cluster.num_devices) if place not in job.absent)
        return step_times(snapshot.pricing, places, snapshot.node_of, snapshot.lengths)

    def _drive(self) -> None:
        """Run the job to its end, and keep what happened in its folder."""
        try:
            self._outcome = self._ran()
        except NereusError as error:
            self._outcome = Outcome("failed", str(error), error=error)
        except Exception as error:
            self._outcome = Outcome("failed", f"{type(error).__name__}: {error}")

    def _ran(self) -> Outcome:
        spec = self._spec
        weights = first_weights(spec.job)
        with (
            (spec.folder / "events.jsonl").open("w") as log,
            started(spec.job, spec.folder, spec.footing, weights, spec.checkpoint) as run,
        ):
            self._run = run
            for event in run.watch(lambda: self._cancelled is not None):
                log.write(json.dumps(event_dict(event)) + "\n")
                log.flush()
                self._news.append(event)
            if self._cancelled is not None:
                return Outcome("cancelled", self._cancelled)
            summary = run.summary()
        (spec.folder / "summary.json").write_text(json.dumps(summary.as_dict(), indent=2) + "\n")
        return Outcome("finished", f"{summary.steps} steps", summary)

    def _ask(self, method: str, *args: Any) -> Any:
        """What the head answers; None while there is none, or it restarts."""
        run = self._run
        if run is None:
            return None
        try:
            return ray.get(getattr(run.head, method).options(concurrency_group="watch").remote(*args), timeout=ANSWER_S)
        except (RayActorError, GetTimeoutError):
            return None
