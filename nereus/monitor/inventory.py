"""The inventory of this machine: its accelerators and the links between them, its memory and its network.

    NVML, AMD SMI, /proc, /sys -> take_inventory -> Inventory (nereus/spec/inventory.py)

Nothing here is a measurement: what links achieve is learnt from what runs over them (nereus/cost).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nereus.monitor.amd import amd
from nereus.monitor.found import Found
from nereus.monitor.machine import Machine
from nereus.monitor.nvidia import nvidia
from nereus.spec.inventory import Inventory

VENDORS: Sequence[Callable[[], Found | None]] = (nvidia, amd)
"""Asked in this order; each answers None where it has no driver here."""


def take_inventory(machine: Machine | None = None, vendors: Sequence[Callable[[], Found | None]] = VENDORS) -> Inventory:
    """What this machine has. A device that can't be read is left out, and a note says why."""
    machine = machine or Machine()
    found = [told for told in (vendor() for vendor in vendors) if told is not None]
    return Inventory(
        host=machine.name,
        driver=", ".join(told.driver for told in found) or None,
        host_memory=machine.memory_bytes,
        network_bytes_s=machine.network_bytes_s,
        devices=tuple(device for told in found for device in told.devices),
        notes=tuple(note for told in found for note in told.notes),
    )
