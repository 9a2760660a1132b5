"""The controller: several jobs on one cluster, each with a runner of its own and with devices that no other job has.

    commands, API --submit, cancel, status--> Controller [ClusterDriver -- RayNodes, Runners] <-- look, a thread

A detached actor on the head node. All that it must not forget is in its records, which it reads again after a death; its
jobs go on meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from actors.launch import head_name
from actors.nodes import RayNodes
from actors.runners import Runners
from actors.served import Served
from actors.submission import Submission
from nereus.runtime.cluster_driver import Bounds, ClusterDriver
from nereus.runtime.cluster_ports import Outcome
from nereus.runtime.locking import PATIENCE_S
from nereus.runtime.standing import Standing

CONTROLLER, CONTROLLER_API = "nereus-controller", "nereus-controller-api"
"""The names of its actors."""

CONTROLLER_LANES = {"ask": 1}
"""Questions are answered while it looks."""

LOOK_S = 1.0
"""Seconds between two looks: how soon a device that one job has left goes to the next."""


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
    bounds: Bounds


class Controller:
    """Several jobs."""

    def __init__(self, spec: ControllerSpec) -> None:
        """Ray runs this again after a death."""
        folder = spec.folder.expanduser().absolute()
        self._driver = ClusterDriver(folder, RayNodes(), Runners(folder), spec.bounds, time.time, time.monotonic)
        self._served = Served(CONTROLLER_API, CONTROLLER, spec.host, spec.port, spec.token_file)
        self._asked, self._ends = Event(), Event()
        self._driver.open(PATIENCE_S)
        self._looks = Thread(target=self._look_for_ever, name="looks", daemon=True)
        self._looks.start()

    def start(self) -> str:
        """Serve the API, once; returns where. Raises UserError for a folder, tokens or a host that cannot be."""
        self._driver.check()
        return self._served.start()

    def submit(self, submission: Submission) -> str:
        """Take a job in; the name that it has here."""
        self._driver.check()
        name = self._driver.submit(submission.record())
        self._asked.set()
        return name

    def cancel(self, job: str, reason: str) -> bool:
        """End a job; whether there is one that was not over."""
        is_told = self._driver.cancel(job, reason)
        self._asked.set()
        return is_told

    def status(self) -> dict[str, Any]:
        """Everything, as plain values."""
        driver, situation = self._driver, self._driver.situation
        return {
            "api": self._served.url,
            "folder": str(driver.folder),
            "error": driver.failed or self._served.failed,
            "devices": situation.device_counts(),
            "jobs": situation.views(driver.folder),
        }

    def outcome(self, job: str) -> tuple[str, str, Outcome | None] | None:
        """How a job ended: its state, the reason, and what its runner told; None while it is not over."""
        told = self._driver.outcome(job)
        return None if told is None else (told[0].state, told[0].reason, told[1])

    def granted(self, node: str) -> int:
        """How many devices of a node jobs have, those that they are leaving included."""
        self._driver.check()
        return self._driver.situation.grants.on_node(node)

    def standing(self) -> Standing:
        """What its API has to know."""
        driver, situation = self._driver, self._driver.situation
        return Standing(
            heads={claim.told.job: head_name(claim.told.run) for claim in situation.grants.launched()},
            jobs=Counter(situation.states().values()),
            devices=situation.device_counts(),
            failing_s=driver.failing_s,
        )

    def stop(self) -> str | None:
        """End all jobs and the API; why that could not be recorded, if so. The actor itself is ended by whoever asks."""
        unrecorded = self._driver.stop()
        self._ends.set()
        self._asked.set()
        self._looks.join()
        self._served.end()
        return unrecorded

    def _look_for_ever(self) -> None:
        """Look once a second, and at once when something was asked."""
        import ray

        anew = ray.get_runtime_context().was_current_actor_reconstructed
        while not self._ends.is_set():
            self._asked.clear()
            self._driver.look()
            if self._driver.failed is None:
                self._served.keep(anew=anew)
            self._asked.wait(LOOK_S)
