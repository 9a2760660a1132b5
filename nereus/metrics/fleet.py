"""The devices of each job."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

from nereus.metrics.exposition import Described, Samples, Source, one
from nereus.runtime.projection import View

DEVICE_STATES = ("ready", "leaving")

EVERY = 10**9
"""More devices than any pool has: all on one page."""


def _of_devices(value: Callable[[Source, View], float]) -> Callable[[Source], Samples]:
    """One series for each device that is there, by its number."""
    return lambda source: [((str(view["device"]),), value(source, view)) for view in source.projection.devices(None, EVERY)]


def _peak(source: Source, view: View) -> float:
    report = source.projection.report
    return report.peak_bytes.get(view["endpoint"], 0) if report else 0


def _idle(source: Source) -> int:
    return sum(not view["model_stages"] for view in source.projection.devices(None, EVERY))


OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Fleet",
        "gauge",
        "nereus_devices",
        "Devices that are there, by state.",
        lambda s: [((state,), s.projection.devices_by_state()[state]) for state in DEVICE_STATES],
        ("state",),
    ),
    Described(
        "Fleet",
        "gauge",
        "nereus_devices_idle",
        "Devices that are there and unused by the plan in force.",
        one(_idle),
    ),
    Described(
        "Fleet",
        "counter",
        "nereus_devices_arrived_total",
        "Devices that came, those of the start included; one that is started anew comes again.",
        one(lambda s: s.tallies.arrived),
    ),
    Described(
        "Fleet",
        "counter",
        "nereus_devices_departed_total",
        "Devices that went after a notice.",
        one(lambda s: s.tallies.departed),
    ),
    Described(
        "Fleet",
        "counter",
        "nereus_devices_lost_total",
        "Devices whose endpoint ended without notice: it died, or all were ended to start from a checkpoint.",
        one(lambda s: s.tallies.lost),
    ),
    Described(
        "Fleet",
        "gauge",
        "nereus_device_usable_bytes",
        "Memory of a device that a plan may use: declared, less headroom; +Inf where none is, NaN before the start.",
        one(lambda s: s.projection.described.usable_bytes if s.projection.described else nan),
    ),
    Described(
        "Fleet",
        "gauge",
        "nereus_device_peak_bytes",
        "Highest use of the device's memory in the latest step; 0 where it took no part.",
        _of_devices(_peak),
        ("device",),
    ),
    Described(
        "Fleet",
        "gauge",
        "nereus_device_model_stages",
        "Model-stages of the plan in force that use the device.",
        _of_devices(lambda _, view: len(view["model_stages"])),
        ("device",),
    ),
)
