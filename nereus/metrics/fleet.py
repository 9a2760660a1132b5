"""The devices of each job."""

from __future__ import annotations

from nereus.metrics.exposition import Described, Source

DEVICE_STATES = ("ready", "leaving")

OF_JOBS: tuple[Described[Source], ...] = (
    Described(
        "Fleet",
        "gauge",
        "nereus_devices",
        "Devices that are there, by state.",
        lambda s: [((state,), s.projection.devices_by_state()[state]) for state in DEVICE_STATES],
        ("state",),
    ),
)
