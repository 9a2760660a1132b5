"""How a controller of several jobs stands: for whoever asks it, for its API and for metrics.

Situation (what it knows) -> views, device_counts: plain values, `nereus controller status --json`          Standing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nereus.policy.allotting import Allotment
from nereus.policy.grants import Claim, Grants
from nereus.runtime.cluster_ports import Look

JOB_STATES = ("queued", "starting", "running", "finished", "failed", "cancelled")
"""What a job of a controller can be; the last three for ever."""

DEVICE_COUNTS = ("there", "leaving", "granted", "asked_for")
"""What is counted of a kind of device: on nodes that are there, on those that will go, with jobs, and asked of Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What its API has to know of it."""

    heads: Mapping[str, str]
    """The running jobs, and the names of their heads' actors."""
    jobs: Mapping[str, int]
    """How many it has ever had, by state."""
    devices: Mapping[str, Mapping[str, int]]
    """Devices by kind, then as in DEVICE_COUNTS."""
    failing_s: float
    """Seconds for which its looks at the cluster have failed, so that nobody gets or leaves devices; 0 while they do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that it knows at one moment."""

    grants: Grants
    looks: Mapping[str, Look | None]
    """By job, the latest that told something."""
    allotments: Mapping[str, Allotment]
    """By kind of device: what its latest look came to."""
    requested: Mapping[str, int]
    """Devices that the cluster was asked to have, by kind."""

    def states(self) -> dict[str, str]:
        """Each job's, of JOB_STATES."""
        return {job: state_of(claim, self.looks.get(job)) for job, claim in self.grants.claims.items()}

    def views(self, folder: Path) -> list[dict[str, Any]]:
        """Each job, as plain values; `folder` is the controller's."""
        allotments, claims = self.allotments, self.grants.claims
        return [
            job_view(claim, self.looks.get(job), allotments.get(claim.told.resource), run_folder(folder, claim))
            for job, claim in claims.items()
        ]

    def device_counts(self) -> dict[str, dict[str, int]]:
        """The pool: by kind of device, then as in DEVICE_COUNTS."""
        return {
            kind: {
                "there": sum(node.devices for node in nodes),
                "leaving": sum(node.devices for node in nodes if node.is_leaving),
                "granted": len(self.grants.taken(kind)),
                "asked_for": self.requested.get(kind, 0),
            }
            for kind, nodes in self.grants.nodes.items()
        }


def job_view(claim: Claim, look: Look | None, allotment: Allotment | None, folder: Path) -> dict[str, Any]:
    """One job."""
    job, holdings = claim.told.job, look.holdings if look is not None else None
    waiting = allotment.waiting.get(job, "") if allotment is not None else ""
    return {
        "job": job,
        "state": state_of(claim, look),
        "reason": claim.ended.reason if claim.ended is not None else waiting,
        "devices": {str(place): str(seat) for place, seat in sorted(claim.seats.items())},
        "leaving": sorted(claim.leaving),
        "wanted": allotment.counts.get(job) if allotment is not None and claim.ended is None else None,
        "marginal_gain": allotment.marginal.get(job) if allotment is not None and claim.ended is None else None,
        "epoch": holdings.epoch if holdings is not None else None,
        "step": holdings.step if holdings is not None else None,
        "phase": holdings.phase if holdings is not None and claim.ended is None else None,
        "folder": str(folder),
    }


def state_of(claim: Claim, look: Look | None) -> str:
    """One of JOB_STATES."""
    if claim.ended is not None:
        return claim.ended.state
    if claim.is_queued:
        return "queued"
    started = look is not None and look.holdings is not None and look.holdings.phase not in ("Idle", "Starting")
    return "running" if started else "starting"


def run_folder(folder: Path, claim: Claim) -> Path:
    """Where a job's run is kept, below the controller's folder."""
    return folder / "runs" / claim.told.run
