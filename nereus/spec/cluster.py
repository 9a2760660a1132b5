"""The devices that a job runs on: how many there are, and what each can do."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from nereus.spec.declared import Declared, Real, Whole
from nereus.spec.devices import MAX_DEVICES_PER_NODE, MAX_NODES
from nereus.spec.links import Links
from nereus.spec.sizes import Bytes


class CpuDevice(Declared):
    """A process on CPU cores that stands for an accelerator of a declared speed and memory."""

    kind: Literal["cpu"] = "cpu"
    """What the device is; the default needs no accelerator."""
    speed: Real | None = Field(default=None, gt=0, le=1)
    """Fraction of one core that the device computes at; all devices together at most 0.8 of the cores. null: unpaced."""
    memory: Bytes
    """Bytes that the ledger of the device grants, such as 64MiB. No default: it decides which layouts fit."""


class GpuDevice(Declared):
    """A real accelerator."""

    kind: Literal["gpu"]
    """What the device is."""
    memory: Bytes | None = None
    """Bytes that the ledger of the device grants; null: what the accelerator reports."""

    @property
    def speed(self) -> float | None:
        """An accelerator runs at its own speed: it is never paced."""
        return None


def _kind(device: Any) -> Any:
    kind = device.get("kind", "cpu") if isinstance(device, dict) else getattr(device, "kind", None)
    return kind if isinstance(kind, str) else None


Device = Annotated[Annotated[CpuDevice, Tag("cpu")] | Annotated[GpuDevice, Tag("gpu")], Discriminator(_kind)]
"""A device, told apart by `kind`."""


class Cluster(Declared):
    """Equal nodes of equal devices. Device d is on node d // devices_per_node."""

    nodes: Whole = Field(ge=1, le=MAX_NODES)
    """Machines, or emulated Ray nodes on one machine."""
    devices_per_node: Whole = Field(ge=1, le=MAX_DEVICES_PER_NODE)
    """Devices of each node."""
    device: Device
    """What each device is."""
    links: Links = Field(default_factory=Links)
    """How fast state moves between them before any was moved: declared, or learnt by an earlier run."""

    @property
    def num_devices(self) -> int:
        """Devices of all nodes, absent ones included."""
        return self.nodes * self.devices_per_node

    def node_of(self, device: int) -> int:
        """The node that a device is on."""
        return device // self.devices_per_node
