"""The runner: one job of the controller, in a process that outlives a restart of it.

controller --offer, cancel--> Runner [rendezvous, job, planner, head] --look: holdings, step times, outcome--> controller

It owns all actors of its job, so that they end with it; it is found again by its name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from actors.launch import Footing, Launched, first_weights, started
from nereus.control.checkpoint import Checkpoint
from nereus.control.effects import News
from nereus.control.offer import Offer
from nereus.errors import NereusError
from nereus.policy.sharing import step_times
from nereus.policy.snapshot import Snapshot
from nereus.runtime.cluster_ports import Look, Outcome
from nereus.runtime.event_log import event_dict
from nereus.spec.job import Job

RUNNER_LANES = {"ask": 1}
"""Looks and offers; the job, and searches that may take seconds, have threads of their own."""

PRICE_EVERY_S = 30.0
"""Seconds between two predictions of what a running job would gain by devices: lengths change over minutes."""

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


class Runner:
    """One job."""

    def __init__(self, spec: RunnerSpec) -> None:
        self._spec = spec
        self._run: Launched | None = None
        self._news: list[News] = []
        self._outcome: Outcome | None = None
        self._cancelled: str | None = None
        self._seconds: Mapping[int, float] | None = None
        Thread(target=self._drive, name="job", daemon=True).start()
        if spec.footing.is_live:
            Thread(target=self._price_for_ever, name="prices", daemon=True).start()

    def look(self) -> Look:
        """What the job has, or how it ended."""
        if self._outcome is not None:
            return Look(outcome=self._outcome)
        return Look(holdings=self._ask("holdings"), seconds=self._seconds)

    def offer(self, offer: Offer) -> None:
        """What the job may use from now on."""
        self._ask("offer", offer)

    def feed(self, after: int) -> Sequence[News]:
        """What happened since the first `after` news."""
        return self._news[after:]

    def cancel(self, reason: str) -> None:
        """End the job; its outcome says so once its processes are gone."""
        self._cancelled = reason

    def _price_for_ever(self) -> None:
        """Predict L_step by number of devices, on what the job has learnt, again and again until it is over."""
        job = self._spec.job
        places = tuple(place for place in range(job.cluster.num_devices) if place not in job.absent)
        while self._outcome is None:
            time.sleep(PRICE_EVERY_S)
            with suppress(Exception):  # whatever does not answer, or cannot be searched now, is asked again
                snapshot: Snapshot | None = self._ask("snapshot")
                if snapshot is not None:
                    self._seconds = step_times(snapshot.pricing, places, snapshot.node_of, snapshot.lengths)

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
