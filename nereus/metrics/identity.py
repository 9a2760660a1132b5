"""What runs: the version of this process."""

from __future__ import annotations

from nereus import __version__
from nereus.metrics.exposition import Described, Process

OF_PROCESS: tuple[Described[Process], ...] = (
    Described(
        "Identity",
        "info",
        "nereus_build_info",
        "The version that runs; always 1.",
        lambda _: [((__version__,), 1)],
        ("version",),
    ),
)
