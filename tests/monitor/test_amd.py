"""AMD's devices through a module that answers as `amdsmi` 7 does; figures are those that amd-smi prints of an MI300X."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from nereus.monitor.amd import amd
from nereus.monitor.found import Found
from nereus.spec.hardware import ACCELERATORS

GIB = 2**30


class LinkType(IntEnum):
    AMDSMI_LINK_TYPE_XGMI = 2
    AMDSMI_LINK_TYPE_PCIE = 3


class SmiError(Exception):
    """Of any call."""


class LibraryError(SmiError):
    """Of the library."""


def unsupported(handle: int) -> dict[str, Any]:
    raise LibraryError("not supported")


def module(**changes: Any) -> SimpleNamespace:
    """Two MI300X: seven xGMI links of 512 Gb/s in a table of eight, PCIe 5 x16."""
    links = [{"link_type": LinkType.AMDSMI_LINK_TYPE_XGMI, "max_bandwidth": 512}] * 7 + [
        {"link_type": 0, "max_bandwidth": 0}
    ]
    found = {
        "AmdSmiException": SmiError,
        "AmdSmiLibraryException": LibraryError,
        "AmdSmiLinkType": LinkType,
        "AmdSmiMemoryType": SimpleNamespace(VRAM="vram"),
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: [0, 1],
        "amdsmi_get_gpu_asic_info": lambda handle: {"market_name": "AMD Instinct MI300X"},
        "amdsmi_get_gpu_device_uuid": lambda handle: f"uuid-{handle}",
        "amdsmi_get_gpu_memory_total": lambda handle, of: 192 * GIB,
        "amdsmi_get_gpu_driver_info": lambda handle: {"driver_version": "6.12"},
        "amdsmi_get_link_metrics": lambda handle: {"num_links": 8, "links": links},
        "amdsmi_get_pcie_info": lambda handle: {"pcie_static": {"max_pcie_speed": 32000, "max_pcie_width": 16}},
    }
    return SimpleNamespace(**{**found, **changes})


def told(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Found | None:
    monkeypatch.setitem(sys.modules, "amdsmi", module(**changes))
    return amd()


def test_links_and_memory_are_those_of_the_datasheet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch)
    assert found is not None
    assert (found.driver, found.notes) == ("AMD 6.12", ())
    known = ACCELERATORS["MI300X"]
    for index, device in enumerate(found.devices):
        assert (device.index, device.uuid, device.kind, device.memory) == (index, f"uuid-{index}", "MI300X", 192 * GIB)
        assert device.node_bytes_s == known.node_bytes_s
        assert device.host_bytes_s == pytest.approx(known.host_bytes_s, rel=0.02)


def test_what_a_driver_does_not_know_is_left_to_the_datasheet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, amdsmi_get_link_metrics=unsupported, amdsmi_get_pcie_info=unsupported)
    assert found is not None
    assert {(device.node_bytes_s, device.host_bytes_s) for device in found.devices} == {(None, None)}


def test_device_that_cannot_be_read_is_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def asic(handle: int) -> dict[str, Any]:
        return unsupported(handle) if handle else {"market_name": "AMD Instinct MI250X"}

    found = told(monkeypatch, amdsmi_get_gpu_asic_info=asic)
    assert found is not None
    assert [device.kind for device in found.devices] == [None], "a die is half of the datasheet's device"
    assert found.notes[0] == "device 1 is left out: AMD SMI says not supported"
    assert found.notes[1] == "device 0: AMD Instinct MI250X is no known kind"


def test_library_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise LibraryError("no driver")

    found = told(monkeypatch, amdsmi_init=init)
    assert found == Found(driver="AMD", notes=("AMD SMI does not start: no driver",))


def test_machine_without_the_package_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert amd() is None
