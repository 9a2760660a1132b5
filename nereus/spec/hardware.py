"""Accelerator kinds and the links between them, as their makers' datasheets print them.

    Accelerator (peaks of one device) + devices per node -> Hardware -> link class of a group -> bytes per second

Datasheet figures are what no kernel exceeds; what is achieved is learnt (nereus/cost). Peaks are for dense matrices. A link
rate is what one device can send while it receives as much: half of the figure that datasheets print for both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from nereus.errors import LayoutError

GIB = 2**30


class LinkClass(StrEnum):
    """Where a message travels."""

    NODE = "node"
    """Between devices of one node: NVLink, Infinity Fabric or PCIe."""
    NETWORK = "network"
    """Between nodes."""


LATENCY_S: Mapping[LinkClass, float] = {LinkClass.NODE: 2e-6, LinkClass.NETWORK: 10e-6}
"""Seconds of the smallest message over one hop: what an idle NVLink and an idle RDMA network need at best. Less than what a
collective under load takes; that is learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One kind of device."""

    name: str
    peak_flops: Mapping[str, float]
    """Dense FLOP/s by dtype of the operands."""
    memory_bytes: int
    memory_bytes_s: float
    """Bandwidth of the device's own memory."""
    node_bytes_s: float
    """One direction, to the other devices of its node."""
    network_bytes_s: float
    """One direction, per device, in the maker's own reference node."""
    host_bytes_s: float
    """One direction, to the memory of its node's host."""
    source: str
    price_per_hour: float | None = None
    """Of one device, where the user gives one; no list price is built in, they change too often."""

    def flops_s(self, dtype: str) -> float:
        """Peak for operands of this dtype; a dtype without units of its own runs at the nearest wider one's rate."""
        for name in (dtype, "bfloat16", "float16"):
            if name in self.peak_flops:
                return self.peak_flops[name]
        raise LayoutError(f"{self.name}: no peak for dtype {dtype}; known are {sorted(self.peak_flops)}")


def _kind(
    name: str, half: float, memory_gib: int, memory_gb_s: float, node_gb_s: float, network_gb_s: float, host_gb_s: float,
    source: str,
    *, bfloat: bool = True, eight: float | None = None, four: float | None = None,
) -> Accelerator:  # fmt: skip
    """An accelerator from the figures of its datasheet: TFLOP/s, GiB, GB/s."""
    peaks = {"float16": half * 1e12} | ({"bfloat16": half * 1e12} if bfloat else {})
    peaks |= {dtype: value * 1e12 for dtype, value in (("float8", eight), ("float4", four)) if value}
    return Accelerator(
        name=name,
        peak_flops=peaks,
        memory_bytes=memory_gib * GIB,
        memory_bytes_s=memory_gb_s * 1e9,
        node_bytes_s=node_gb_s * 1e9,
        network_bytes_s=network_gb_s * 1e9,
        host_bytes_s=host_gb_s * 1e9,
        source=source,
    )


ACCELERATORS: Mapping[str, Accelerator] = {
    kind.name: kind
    for kind in (
        _kind("V100", 125, 32, 900, 150, 6.25, 16, "NVIDIA V100 datasheet (SXM2); DGX-1: 4 x 100 Gb/s for 8", bfloat=False),
        _kind("A100-40GB", 312, 40, 1555, 300, 25, 32, "NVIDIA A100 datasheet (SXM4); DGX A100: 8 x 200 Gb/s"),
        _kind("A100-80GB", 312, 80, 2039, 300, 25, 32, "NVIDIA A100 datasheet (SXM4); DGX A100: 8 x 200 Gb/s"),
        _kind("H100", 989, 80, 3350, 450, 50, 64, "NVIDIA H100 datasheet (SXM5); DGX H100: 8 x 400 Gb/s", eight=1979),
        _kind("H200", 989, 141, 4800, 450, 50, 64, "NVIDIA H200 datasheet (SXM); DGX H200: 8 x 400 Gb/s", eight=1979),
        _kind("B200", 2250, 180, 8000, 900, 50, 64, "NVIDIA DGX B200 datasheet, an eighth", eight=4500, four=9000),
        _kind("GH200", 990, 96, 4000, 450, 50, 450, "NVIDIA GH200 datasheet (HBM3); 400 Gb/s per superchip", eight=1979),
        _kind("MI250X", 383, 128, 3200, 400, 25, 32, "AMD MI250X datasheet (both dies); 4 x 200 Gb/s for 4"),
        _kind("MI300X", 1307, 192, 5300, 448, 50, 64, "AMD MI300X datasheet; 8 x 400 Gb/s", eight=2615),
        _kind("L40S", 362, 48, 864, 32, 12.5, 32, "NVIDIA L40S datasheet (PCIe 4 x16); 100 Gb/s per device", eight=733),
    )
}
"""By name. HBM sizes are printed in GB and count GiB; a driver keeps up to 1 % of it for itself. Hosts are reached over
PCIe x16 of generation 3, 4 or 5 (16, 32 or 64 GB/s), of GH200 over NVLink-C2C."""


CPU_BYTES_S = 1.0e9
"""Bytes per second between two local processes over Gloo: half of what was measured, since pairs share the cores."""


def cpu(flops_s: float, memory_bytes: int, dtype: str) -> Accelerator:
    """A device without a datasheet: its peak was timed, its declared speed included.

    The bandwidth of its memory is not known, so nothing is counted by bytes: that time is part of what calls and FLOPs take.
    """
    return Accelerator(
        name="cpu",
        peak_flops={dtype: flops_s},
        memory_bytes=memory_bytes,
        memory_bytes_s=inf,
        node_bytes_s=CPU_BYTES_S,
        network_bytes_s=CPU_BYTES_S,
        host_bytes_s=inf,
        source="timed when its worker started",
    )


@dataclass(frozen=True, slots=True)
class Hardware:
    """Equal nodes of one accelerator kind."""

    accelerator: Accelerator
    devices_per_node: int = 8

    def link(self, span: int) -> LinkClass:
        """The slowest link inside a group whose members lie within `span` neighbouring devices."""
        return LinkClass.NODE if span <= self.devices_per_node else LinkClass.NETWORK

    def bytes_s(self, link: LinkClass) -> float:
        """Peak bytes per second of one device in one direction."""
        return self.accelerator.node_bytes_s if link is LinkClass.NODE else self.accelerator.network_bytes_s
