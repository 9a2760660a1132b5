"""What one vendor's library tells of a machine."""

from __future__ import annotations

from dataclasses import dataclass

from nereus.spec.inventory import InventoryDevice


@dataclass(frozen=True, kw_only=True)
class Found:
    """The accelerators of one vendor."""

    driver: str
    """Name and version."""
    devices: tuple[InventoryDevice, ...] = ()
    """In the driver's order."""
    notes: tuple[str, ...] = ()
    """What could not be read, and why."""
