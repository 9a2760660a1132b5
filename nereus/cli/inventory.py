"""`nereus inventory`: what this machine has, as a table, as JSON, and as a file for the nodes of an outline."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nereus.errors import UserError
from nereus.monitor.inventory import take_inventory
from nereus.spec.inventory import Inventory

GIB = 2**30
UNTOLD = "datasheet"
"""What stands for a rate that no driver tells."""


def show_inventory(save: Path | None, *, as_json: bool) -> None:
    """Read, write and print. Raises UserError when the file cannot be written."""
    found = take_inventory()
    if save is not None:
        try:
            save.write_text(found.model_dump_json(indent=2) + "\n")
        except OSError as error:
            problem = f"--save: {save} cannot be written: {error.strerror}; name a file in a folder that exists"
            raise UserError(problem) from None
    if as_json:
        print(found.model_dump_json())  # noqa: T201
        return
    console = Console()
    show(found, console)
    if save is not None:
        console.print(f"saved to {save}; name it in an outline: nodes: [{{inventory: {save.name}, count: 1}}]", markup=False)


def show(found: Inventory, console: Console) -> None:
    """The machine in one line, its devices in a table, and what could not be read."""
    network = f"{found.network_bytes_s / 1e9:.4g} GB/s to the network" if found.network_bytes_s else "network rates not told"
    driver = f", {found.driver}" if found.driver else ""
    console.print(f"{found.host}: {found.host_memory / GIB:.1f} GiB for processes, {network}{driver}", markup=False)
    if found.devices:
        table = Table("device", "product", "kind", "memory GiB", "to its node GB/s", "to its host GB/s")
        for device in found.devices:
            rates = (_rate(device.node_bytes_s), _rate(device.host_bytes_s))
            memory = f"{device.memory / GIB:.1f}"
            table.add_row(str(device.index), escape(device.product), device.kind or "not known", memory, *rates)
        console.print(table)
    else:
        console.print("no accelerators: neither NVML nor AMD SMI finds one")
    for note in found.notes:
        console.print(f"note: {note}", markup=False)


def _rate(bytes_s: int | None) -> str:
    return UNTOLD if bytes_s is None else f"{bytes_s / 1e9:.4g}"
