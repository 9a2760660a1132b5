"""NVIDIA's accelerators, as NVML tells of them.

libnvidia-ml.so.1 -> pynvml (nvidia-ml-py) -> Found(driver, devices, notes); None where there is no library
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pynvml

from nereus.monitor.found import Found
from nereus.monitor.pcie import pcie_bytes_s
from nereus.spec.inventory import InventoryDevice, kind_of

T = TypeVar("T")

LINK_BYTES_S: Mapping[int, int] = {
    1: 20_000_000_000,
    **dict.fromkeys((2, 3, 4, 5, 6), 25_000_000_000),
    7: 50_000_000_000,
}
"""One direction of one NVLink by `nvmlNvlinkVersion_t` (1.0; 2.0, 2.2, 3.0, 3.1, 4.0; 5.0), from NVIDIA's datasheets: V100
has 6 links and 150 GB/s, A100 12 and 300, H100 18 and 450, B200 18 and 900."""


def nvidia() -> Found | None:
    """What the driver says; None where there is none. Its devices in MIG mode are left out, with a note."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return None if error.value in absent else Found(driver="NVIDIA", notes=(f"NVML does not start: {error}",))
    try:
        return _found()
    except pynvml.NVMLError as error:
        return Found(driver="NVIDIA", notes=(f"NVML says {error}",))
    finally:
        pynvml.nvmlShutdown()


def _found() -> Found:
    devices, notes = [], []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if (_told(pynvml.nvmlDeviceGetMigMode, handle) or [0])[0]:
                notes.append(f"device {index} is cut up by MIG, which plans don't know: it is left out")
                continue
            devices.append(_device(index, handle))
        except pynvml.NVMLError as error:
            notes.append(f"device {index} is left out: NVML says {error}")
    notes += [f"device {d.index}: {d.product} is no known kind" for d in devices if d.kind is None]
    return Found(driver=f"NVIDIA {pynvml.nvmlSystemGetDriverVersion()}", devices=tuple(devices), notes=tuple(notes))


def _device(index: int, handle: Any) -> InventoryDevice:
    product = str(pynvml.nvmlDeviceGetName(handle))
    generation = _told(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    lanes = _told(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    pcie = pcie_bytes_s(generation, lanes) if generation and lanes else None
    links, linked = _nvlink(handle)
    return InventoryDevice(
        index=index,
        product=product,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        kind=kind_of(product),
        memory=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        node_bytes_s=linked if links else pcie,
        # The superchip's host is at the other end of NVLink-C2C, whose rate NVML doesn't tell.
        host_bytes_s=None if "GH200" in product else pcie,
    )


def _nvlink(handle: Any) -> tuple[int, int | None]:
    """How many NVLinks are up, and their bytes per second together; None where one is of an unknown version."""
    rates = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _told(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state == pynvml.NVML_FEATURE_ENABLED:
            rates.append(LINK_BYTES_S.get(_told(pynvml.nvmlDeviceGetNvLinkVersion, handle, link) or 0))
    known = [rate for rate in rates if rate is not None]
    return len(rates), sum(known) if len(known) == len(rates) else None


def _told(ask: Callable[..., T], *about: Any) -> T | None:
    """What the driver answers; None where this device, or this driver, doesn't know."""
    try:
        return ask(*about)
    except pynvml.NVMLError:
        return None
