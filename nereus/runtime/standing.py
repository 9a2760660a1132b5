"""How a controller of several jobs stands, as it tells its API: for readers and for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

JOB_STATES = ("queued", "starting", "running", "finished", "failed", "cancelled")
"""What a job of a controller can be; the last three for ever."""

DEVICE_COUNTS = ("there", "leaving", "granted", "asked_for")
"""What is counted of a kind of device: on nodes that are there, on those that will go, with jobs, and asked of Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One moment of it."""

    heads: Mapping[str, str]
    """The running jobs, and the names of their heads' actors."""
    jobs: Mapping[str, int]
    """How many it has ever had, by state."""
    devices: Mapping[str, Mapping[str, int]]
    """Devices by kind, then as in DEVICE_COUNTS."""
    failing_s: float
    """Seconds for which its looks at the cluster have failed, so that nobody gets or leaves devices; 0 while they do not."""
