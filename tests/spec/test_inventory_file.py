"""The node group of an outline that an inventory file makes; what is declared beside it comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nereus.errors import JobFileError
from nereus.spec.inventory import kind_of
from nereus.spec.outline import Nodes, read_outline

GIB = 2**30


def device(**changes: Any) -> dict[str, Any]:
    known = {"index": 0, "product": "NVIDIA H100 80GB HBM3", "uuid": "GPU-0", "kind": "H100", "memory": 79 * GIB}
    return {**known, "node_bytes_s": 400 * 10**9, "host_bytes_s": None, **changes}


def nodes(folder: Path, *devices: dict[str, Any], group: dict[str, Any] | None = None, **changes: Any) -> Nodes:
    """The node group of an outline that names a file with these devices."""
    told = {"version": 1, "host": "n0", "driver": "NVIDIA 590", "host_memory": 2**40, "network_bytes_s": 200 * 10**9}
    (folder / "node.json").write_text(json.dumps({**told, "devices": devices, "notes": [], **changes}))
    outline = {
        "name": "job",
        "algorithm": "grpo",
        "models": {"actor": "a.json"},
        "workload": {"prompts_per_step": 8, "prompt_tokens": 10, "response_tokens": 10},
        "nodes": [{"inventory": "node.json", "count": 2, **(group or {})}],
    }
    (found,) = read_outline(outline, folder).nodes
    return found


def test_group_has_what_the_machine_has(tmp_path: Path) -> None:
    group = nodes(tmp_path, device(), device(index=1))
    assert (group.kind, group.count, group.devices, group.memory_bytes) == ("H100", 2, 2, 79 * GIB)
    found = group.accelerator
    assert (found.node_bytes_s, found.network_bytes_s) == (400e9, 100e9), "the network's ports are shared by two devices"
    assert found.host_bytes_s == 64e9, "the datasheet's, since the driver doesn't say"
    assert group.host_memory is None, "what a plan may fill of the host is the user's to say"


def test_slowest_and_smallest_device_counts(tmp_path: Path) -> None:
    group = nodes(tmp_path, device(), device(index=1, memory=70 * GIB, node_bytes_s=200 * 10**9))
    assert (group.memory_bytes, group.node_bytes_s) == (70 * GIB, 200 * 10**9)
    group = nodes(tmp_path, device(), device(index=1, node_bytes_s=None))
    assert group.node_bytes_s is None


def test_what_is_declared_comes_first(tmp_path: Path) -> None:
    group = nodes(tmp_path, device(), group={"kind": "H200", "memory": "60GiB", "network_bytes_s": "25GB"})
    assert (group.kind, group.memory_bytes, group.network_bytes_s) == ("H200", 60 * GIB, 25 * 10**9)
    assert group.node_bytes_s == 400 * 10**9


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([], "n0 has no accelerators"),
        (
            [device(), device(kind="L40S", product="NVIDIA L40S")],
            "NVIDIA H100 80GB HBM3, NVIDIA L40S; list a group of nodes for",
        ),
        ([device(kind=None, product="NVIDIA H100 PCIe")], "NVIDIA H100 PCIe is no known kind; give the nearest one as kind"),
    ],
)
def test_machine_that_makes_no_group_is_refused(tmp_path: Path, devices: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(JobFileError, match=r"nodes\[0\]\.inventory") as caught:
        nodes(tmp_path, *devices)
    assert message in str(caught.value)


def test_unknown_product_is_planned_as_the_kind_that_is_declared(tmp_path: Path) -> None:
    assert nodes(tmp_path, device(kind=None, product="NVIDIA H100 PCIe"), group={"kind": "H100"}).kind == "H100"


def test_file_of_another_version_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="version"):
        nodes(tmp_path, device(), version=2)
    with pytest.raises(JobFileError, match="there is no such file"):
        nodes(tmp_path, device(), group={"inventory": "other.json"})


@pytest.mark.parametrize(
    ("product", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", None),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-PCIE-16GB", None),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", None),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI250X", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_product_is_the_kind_of_its_datasheet(product: str, kind: str | None) -> None:
    assert kind_of(product) == kind
