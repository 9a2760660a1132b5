"""What a controller of several jobs needs of a cluster, whoever runs it: its nodes, and one runner for each job.

Called by the ClusterDriver only: `cancel` by whoever asks, all others by one thread at a time. Verbs may block for some
seconds; whatever they raise is told, and all is asked again with the next look, so each may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from nereus.control.offer import Holdings, Offer
from nereus.errors import NereusError
from nereus.policy.grants import Claim
from nereus.policy.seating import Node
from nereus.runtime.summary import Summary


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a runner tells of its job; one that is there and does not answer in time tells nothing."""

    holdings: Holdings | None = None
    """None while the job's head starts, or does not answer."""
    outcome: Outcome | None = None
    """None while the job runs."""
    seconds: Mapping[int, float] | None = None
    """Predicted L_step by number of devices, on what the job has learnt; None where that is not known yet."""


class NodesPort(Protocol):
    """The nodes of a cluster."""

    def seen(self, resource: str) -> tuple[Node, ...]:
        """Those that are there, with what each offers of a kind of device."""

    def request(self, numbers: Mapping[str, int]) -> None:
        """Ask for so many devices of each kind, instead of what was asked for before. What comes, comes as nodes."""


class RunnersPort(Protocol):
    """The runners: for each job one process that outlives a restart of the controller."""

    def start(self, claim: Claim) -> None:
        """Start a job on the devices that it has, unless its runner is there. Raises NereusError for one that cannot be."""

    def looks(self, jobs: Collection[str]) -> Mapping[str, Look | None]:
        """What the runner of each job tells; None where there is none."""

    def offer(self, job: str, offer: Offer) -> None:
        """Tell a job what it may use. It may be lost: `Holdings.heard` says what was heard."""

    def cancel(self, job: str, reason: str) -> None:
        """Have a job end; its outcome follows."""

    def kill(self, job: str) -> None:
        """End a runner, and all of its job's processes with it, now. Harmless where there is none."""
