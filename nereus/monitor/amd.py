"""AMD's accelerators, as AMD SMI tells of them; its Python package is the extra `rocm`.

    libamd_smi.so -> amdsmi -> Found(driver, devices, notes); None where there is no package or library

The package is imported when it is asked for: on a machine without ROCm its import itself fails, in several ways.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from nereus.monitor.found import Found
from nereus.monitor.pcie import GENERATION, pcie_bytes_s
from nereus.spec.inventory import InventoryDevice, kind_of

UNUSABLE = (ImportError, OSError, KeyError, AttributeError)
"""What importing the package raises where there is no ROCm."""

GIGABIT_BYTES = 10**9 // 8
"""Of a gigabit, as makers count them."""


def amd() -> Found | None:
    """What the library says; None where there is none."""
    try:
        smi = import_module("amdsmi")
    except UNUSABLE:
        return None
    try:
        smi.amdsmi_init()
    except smi.AmdSmiLibraryException as error:
        return Found(driver="AMD", notes=(f"AMD SMI does not start: {error}",))
    try:
        return _found(smi)
    except smi.AmdSmiException as error:
        return Found(driver="AMD", notes=(f"AMD SMI says {error}",))
    finally:
        smi.amdsmi_shut_down()


def _found(smi: Any) -> Found:
    devices, notes = [], []
    handles = smi.amdsmi_get_processor_handles()
    for index, handle in enumerate(handles):
        try:
            devices.append(_device(smi, index, handle))
        except smi.AmdSmiException as error:
            notes.append(f"device {index} is left out: AMD SMI says {error}")
    notes += [f"device {d.index}: {d.product} is no known kind" for d in devices if d.kind is None]
    version = _told(smi, smi.amdsmi_get_gpu_driver_info, handles[0]) if handles else None
    driver = f"AMD {version['driver_version']}" if version else "AMD"
    return Found(driver=driver, devices=tuple(devices), notes=tuple(notes))


def _device(smi: Any, index: int, handle: Any) -> InventoryDevice:
    product = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
    pcie = _pcie(_told(smi, smi.amdsmi_get_pcie_info, handle))
    return InventoryDevice(
        index=index,
        product=product,
        uuid=str(smi.amdsmi_get_gpu_device_uuid(handle)),
        kind=kind_of(product),
        memory=int(smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM)),
        node_bytes_s=_xgmi(smi, _told(smi, smi.amdsmi_get_link_metrics, handle)) or pcie,
        host_bytes_s=pcie,
    )


def _xgmi(smi: Any, metrics: dict[str, Any] | None) -> int | None:
    """Of all xGMI links to other devices: `max_bandwidth` is in Gb/s, one direction (512 of an MI300X: 64 GB/s)."""
    links = (metrics or {}).get("links", [])
    xgmi = smi.AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI
    rates = [link["max_bandwidth"] for link in links if link["link_type"] == xgmi]
    return sum(rate for rate in rates if isinstance(rate, int)) * GIGABIT_BYTES or None


def _pcie(info: dict[str, Any] | None) -> int | None:
    """Of the slot: `max_pcie_speed` is in MT/s, `N/A` where it isn't known."""
    if info is None:
        return None
    speed, lanes = info["pcie_static"]["max_pcie_speed"], info["pcie_static"]["max_pcie_width"]
    if not isinstance(speed, int) or not isinstance(lanes, int):
        return None
    return pcie_bytes_s(GENERATION.get(speed / 1000, 0), lanes)


def _told(smi: Any, ask: Callable[[Any], dict[str, Any]], handle: Any) -> dict[str, Any] | None:
    """What the library answers; None where this device, or this driver, doesn't know."""
    try:
        return ask(handle)
    except smi.AmdSmiException:
        return None
