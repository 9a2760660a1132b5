"""Accelerators and links: figures as the datasheets print them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.errors import LayoutError
from nereus.spec.hardware import ACCELERATORS, GIB, Accelerator, Hardware, LinkClass, cpu


def test_every_kind_of_the_design_is_known() -> None:
    kinds = {"V100", "A100-40GB", "A100-80GB", "H100", "H200", "B200", "GH200", "MI250X", "MI300X", "L40S"}
    assert set(ACCELERATORS) == kinds


@pytest.mark.parametrize("kind", ACCELERATORS.values(), ids=lambda kind: kind.name)
def test_a_kind_says_where_its_figures_come_from(kind: Accelerator) -> None:
    assert "datasheet" in kind.source
    assert kind.memory_bytes >= 32 * GIB
    assert kind.node_bytes_s > kind.network_bytes_s > 0


def test_h100_is_as_its_datasheet_prints_it() -> None:
    h100 = ACCELERATORS["H100"]
    assert h100.flops_s("bfloat16") == 989e12
    assert h100.memory_bytes_s == 3.35e12
    assert h100.node_bytes_s * 2 == 900e9


def test_a_dtype_without_units_of_its_own_runs_at_a_wider_ones_rate() -> None:
    assert ACCELERATORS["A100-80GB"].flops_s("float8") == ACCELERATORS["A100-80GB"].flops_s("bfloat16")
    assert ACCELERATORS["V100"].flops_s("bfloat16") == 125e12


def test_a_kind_without_any_peak_is_refused() -> None:
    kind = replace(ACCELERATORS["V100"], peak_flops={"float64": 7e12})
    with pytest.raises(LayoutError, match="bfloat16"):
        kind.flops_s("bfloat16")


def test_a_device_without_a_datasheet_has_what_was_timed_and_no_known_memory_bandwidth() -> None:
    device = cpu(4.5e9, 24 << 20, "float32")
    assert (device.flops_s("float32"), device.memory_bytes) == (4.5e9, 24 << 20)
    assert 1e9 / device.memory_bytes_s == 0
    with pytest.raises(LayoutError, match="bfloat16"):
        device.flops_s("bfloat16")


def test_a_group_beyond_a_node_goes_over_the_network() -> None:
    hardware = Hardware(ACCELERATORS["H100"], devices_per_node=8)
    assert hardware.link(8) is LinkClass.NODE
    assert hardware.link(9) is LinkClass.NETWORK


def test_each_link_class_has_its_own_rate() -> None:
    hardware = Hardware(replace(ACCELERATORS["H100"], network_bytes_s=12.5e9))
    assert hardware.bytes_s(LinkClass.NETWORK) == 12.5e9
    assert hardware.bytes_s(LinkClass.NODE) == 450e9
