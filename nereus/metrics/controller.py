"""How the controller of several jobs stands; an API of a single run tells nothing of this."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Process, Samples
from nereus.runtime.standing import DEVICE_COUNTS, JOB_STATES


def _jobs(process: Process) -> Samples:
    standing = process.standing
    return [] if standing is None else [((state,), standing.jobs.get(state, 0)) for state in JOB_STATES]


def _devices(process: Process) -> Samples:
    devices = {} if process.standing is None else process.standing.devices
    return [((kind, count), counts.get(count, 0)) for kind, counts in devices.items() for count in DEVICE_COUNTS]


def _failing(process: Process) -> Samples:
    return [] if process.standing is None else [((), process.standing.failing_s)]


OF_PROCESS: tuple[Described[Process], ...] = (
    Described(
        "Controller",
        "gauge",
        "nereus_controller_jobs",
        "Jobs that the controller of several jobs has had, by state.",
        _jobs,
        ("state",),
    ),
    Described(
        "Controller",
        "gauge",
        "nereus_controller_devices",
        "Devices of its cluster by kind: there, of these leaving, with jobs, and how many Ray's autoscaler is asked for.",
        _devices,
        ("resource", "state"),
    ),
    Described(
        "Controller",
        "gauge",
        "nereus_controller_failing_seconds",
        "How long its looks at the cluster have failed, 0 while they do not: nobody gets or leaves devices meanwhile.",
        _failing,
    ),
)
