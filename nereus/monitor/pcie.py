"""What PCI Express carries: one direction of a link, its encoding taken off, packets' headers not.

Source: PCI-SIG, PCI Express Base Specification: 8b/10b below generation 3, 128b/130b up to 5, flits (242 of 256) at 6.
"""

from __future__ import annotations

from collections.abc import Mapping

LANE_BYTES_S: Mapping[int, float] = {
    1: 2.5e9 / 10,
    2: 5.0e9 / 10,
    3: 8.0e9 / 8 * 128 / 130,
    4: 16.0e9 / 8 * 128 / 130,
    5: 32.0e9 / 8 * 128 / 130,
    6: 64.0e9 / 8 * 242 / 256,
}
"""Of one lane, by generation."""

GENERATION: Mapping[float, int] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""By GT/s."""


def pcie_bytes_s(generation: int, lanes: int) -> int | None:
    """Of a link; None for a generation that is not known."""
    lane = LANE_BYTES_S.get(generation)
    return int(lane * lanes) if lane and lanes > 0 else None
