"""What a machine has: the file that `nereus inventory --save` writes, and the node group of an outline that it makes.

    nereus/monitor/inventory.py -> Inventory -> node.json -> `nodes: [{inventory: node.json}]` -> fields of the group

Rates are in one direction, in bytes per second: what the hardware can do at most, as a datasheet would say it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from nereus.spec.declared import RECORD
from nereus.spec.problems import Problem, from_validation, refuse
from nereus.spec.reading import read_data

PRODUCTS: tuple[tuple[str, str], ...] = (
    (r"\bV100\b(?!.*PCI)", "V100"),
    (r"\bA100\b.*40\s?GB", "A100-40GB"),
    (r"\bA100\b.*80\s?GB", "A100-80GB"),
    (r"\bGH200\b", "GH200"),
    (r"\bH200\b(?!.*NVL)", "H200"),
    (r"\bH100\b(?!.*(PCI|NVL))", "H100"),
    (r"\bB200\b", "B200"),
    (r"\bL40S\b", "L40S"),
    (r"\bMI300X\b", "MI300X"),
)
"""Pattern of a product's name, and the kind whose datasheet it is. PCIe and NVL cards of an H100 have other clocks; a die
of an MI250X is half of one: these are no kind, so that no plan is made with figures of another product."""


class InventoryDevice(BaseModel):
    """One accelerator of a machine."""

    model_config = RECORD

    index: int = Field(ge=0)
    """As the driver counts them."""
    product: str
    """The name that the driver gives."""
    uuid: str
    """Of this very device."""
    kind: str | None
    """The accelerator whose datasheet it has; null: none that is known."""
    memory: int = Field(ge=1)
    """Bytes that the driver reports."""
    node_bytes_s: int | None = Field(ge=1)
    """To the other devices of the node, over all its links; null: the driver doesn't say."""
    host_bytes_s: int | None = Field(ge=1)
    """To the memory of the host; null: the driver doesn't say."""


class Inventory(BaseModel):
    """One machine and its accelerators."""

    model_config = RECORD

    version: Literal[1] = 1
    """Of the format: a file of another one is refused rather than misread."""
    host: str
    """Its name."""
    driver: str | None
    """Name and version of the accelerators' driver; null: there is none."""
    host_memory: int = Field(ge=1)
    """Bytes that processes may have here, by the control group where one limits them."""
    network_bytes_s: int | None = Field(ge=1)
    """Of all network ports together that are up; null: their rates are not told."""
    devices: tuple[InventoryDevice, ...]
    """In the driver's order."""
    notes: tuple[str, ...] = ()
    """What could not be read, and why."""


def kind_of(product: str) -> str | None:
    """The accelerator kind of a product, such as H100 of `NVIDIA H100 80GB HBM3`; None where it is no known one."""
    return next((kind for pattern, kind in PRODUCTS if re.search(pattern, product, re.IGNORECASE)), None)


def with_inventories(data: object, folder: Path) -> object:
    """An outline's plain data with the fields of its `inventory` files filled in, unless they are given beside it.

    Paths count from `folder`. Raises JobFileError for a file that is not there or of no use.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("nodes"), list):
        return data
    groups = [_filled(group, f"nodes[{place}].inventory", folder) for place, group in enumerate(data["nodes"])]
    return {**data, "nodes": groups}


def _filled(group: Any, field: str, folder: Path) -> Any:
    if not isinstance(group, Mapping) or not isinstance(group.get("inventory"), str):
        return group
    path = folder / group["inventory"]
    return {**_fields(read_inventory(path, field), str(path), field, known="kind" in group), **group}


def read_inventory(path: Path, field: str) -> Inventory:
    """The inventory in a file. Raises JobFileError; `field` is what messages call the file where it is not there."""
    data = read_data(path, field)
    try:
        return Inventory.model_validate(data)
    except ValidationError as error:
        first, *rest = from_validation(error, Inventory, data)
        raise refuse([Problem(f"{path}: {first.field}", first.value, first.allowed), *rest]) from None


def _fields(found: Inventory, path: str, field: str, *, known: bool) -> dict[str, Any]:
    """A node group as an outline would declare it; `known`: its kind is declared. The slowest device of the node counts."""
    kinds = {device.kind for device in found.devices}
    products = ", ".join(sorted({device.product for device in found.devices}))
    if not kinds:
        raise refuse([Problem(field, path, f"{found.host} has no accelerators; list the nodes that have")])
    if len(kinds) > 1:
        raise refuse([Problem(field, path, f"{found.host} has {products}; list a group of nodes for each kind")])
    (kind,) = kinds
    if kind is None and not known:
        raise refuse([Problem(field, path, f"{products} is no known kind; give the nearest one as kind beside it")])
    fields: dict[str, Any] = {
        "devices": len(found.devices),
        "memory": min(device.memory for device in found.devices),
        "network_bytes_s": found.network_bytes_s and max(1, found.network_bytes_s // len(found.devices)),
        "node_bytes_s": _slowest([device.node_bytes_s for device in found.devices]),
        "host_bytes_s": _slowest([device.host_bytes_s for device in found.devices]),
    }
    return {name: value for name, value in {"kind": kind, **fields}.items() if value is not None}


def _slowest(rates: list[int | None]) -> int | None:
    """None unless all are known: the datasheet then says it for all."""
    known = [rate for rate in rates if rate is not None]
    return min(known) if known and len(known) == len(rates) else None
