"""What the controller tells of its jobs, as plain values: `nereus controller status --json` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.runner import Look
from nereus.policy.allotting import Allotment
from nereus.policy.grants import Claim, Grants


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


def device_counts(grants: Grants, asked: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The pool, by kind of device."""
    return {
        kind: {
            "there": sum(node.devices for node in nodes),
            "leaving": sum(node.devices for node in nodes if node.is_leaving),
            "granted": len(grants.taken(kind)),
            "asked_for": asked.get(kind, 0),
        }
        for kind, nodes in grants.nodes.items()
    }
