"""The inventory against datasheets: what the real pynvml reads from a library that answers as NVML does.

Node rates are those of `ACCELERATORS`, which come from datasheets and not from links times their rate.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nereus.spec.hardware import ACCELERATORS
from tests.monitor.fake_drivers import A100_40, B200, GH200, GIB, H100, L40S, V100, environment, library, nereus

EXAMPLE = Path(__file__).parents[2] / "examples" / "outlines"


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("nvml"))


def taken(nvml: Path, *devices: str) -> dict[str, Any]:
    done = nereus("inventory", "--json", env=environment(nvml, devices))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("line", "kind"), [(H100, "H100"), (A100_40, "A100-40GB"), (V100, "V100"), (B200, "B200"), (GH200, "GH200")]
)
def test_links_of_a_whole_node_are_those_of_the_datasheet(nvml: Path, line: str, kind: str) -> None:
    (device,) = taken(nvml, line)["devices"]
    known = ACCELERATORS[kind]
    assert device["kind"] == kind
    assert device["node_bytes_s"] == known.node_bytes_s
    if kind == "GH200":  # its host is not behind PCIe
        assert device["host_bytes_s"] is None
    else:  # the datasheets' 16, 32 and 64 GB/s are before encoding
        assert device["host_bytes_s"] == pytest.approx(known.host_bytes_s, rel=0.02)


def test_device_without_nvlink_reaches_the_others_over_pcie(nvml: Path) -> None:
    (device,) = taken(nvml, L40S)["devices"]
    assert device["node_bytes_s"] == device["host_bytes_s"] == int(16e9 / 8 * 128 / 130 * 16)


def test_links_that_are_down_do_not_count(nvml: Path) -> None:
    half = H100.replace(" 18 6 ", " 9 6 ")
    assert [device["node_bytes_s"] for device in taken(nvml, H100, half)["devices"]] == [450_000_000_000, 225_000_000_000]


def test_nvlink_of_a_version_to_come_says_nothing(nvml: Path) -> None:
    (device,) = taken(nvml, B200.replace(" 18 7 ", " 18 9 "))["devices"]
    assert device["node_bytes_s"] is None


def test_memory_names_and_driver_are_told(nvml: Path) -> None:
    found = taken(nvml, H100, H100)
    assert found["driver"] == "NVIDIA 590.00"
    assert [(d["index"], d["uuid"], d["memory"]) for d in found["devices"]] == [
        (0, "GPU-0", 80 * GIB),
        (1, "GPU-1", 80 * GIB),
    ]
    assert found["notes"] == []


def test_what_is_left_out_is_told(nvml: Path) -> None:
    cut, mute = H100.replace(" 16 0 ", " 16 1 "), H100.replace(str(80 * GIB), "-1")
    found = taken(nvml, cut, mute, H100, H100.replace("HBM3", "PCIe"))
    assert [(device["index"], device["kind"]) for device in found["devices"]] == [(2, "H100"), (3, None)]
    by_mig, by_error, unknown = found["notes"]
    assert "device 0" in by_mig
    assert "MIG" in by_mig
    assert "device 1 is left out: NVML says Not Supported" in by_error
    assert unknown == "device 3: NVIDIA H100 80GB PCIe is no known kind"


def test_library_without_a_driver_is_no_accelerator(nvml: Path) -> None:
    done = nereus("inventory", env=environment(nvml, None))
    assert done.returncode == 0, done.stderr
    assert "no accelerators" in done.stdout


def test_table_names_product_kind_and_rates(nvml: Path) -> None:
    out = nereus("inventory", env={**environment(nvml, [H100]), "COLUMNS": "200"}).stdout
    assert all(word in out for word in ("NVIDIA H100 80GB HBM3", "80.0", "450", "63.02"))


def step_seconds(nvml: Path, folder: Path, *devices: str) -> float:
    """Of the best plan of the example's job on four nodes with these devices."""
    env = environment(nvml, devices)
    saved = nereus("inventory", "--save", str(folder / "node.json"), env=env)
    assert "nodes: [{inventory: node.json, count: 1}]" in saved.stdout
    head, found, _ = (EXAMPLE / "llama-8b-ppo.yaml").read_text().partition("\nnodes:")
    assert found, "the example's nodes"
    shutil.copy(EXAMPLE / "llama-3.1-8b.json", folder)
    (folder / "job.yaml").write_text(f"{head}\nnodes: [{{inventory: node.json, count: 4}}]\n")
    done = nereus("plan", str(folder / "job.yaml"), "--json", env=env)
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)["answers"]
    assert answer["devices"] == 4 * len(devices)
    seconds: float = answer["plans"][0]["l_step_seconds"]
    return seconds


def test_saved_inventory_is_planned_with(nvml: Path, tmp_path: Path) -> None:
    whole = step_seconds(nvml, tmp_path, *[A100_40] * 4)
    assert step_seconds(nvml, tmp_path, *[A100_40.replace(" 12 5 ", " 1 5 ")] * 4) > whole, "a twelfth of the links"


def test_file_that_cannot_be_written_is_named(nvml: Path, tmp_path: Path) -> None:
    done = nereus("inventory", "--save", str(tmp_path / "none" / "x.json"), env=environment(nvml, [H100]))
    assert done.returncode == 2
    assert f"--save: {tmp_path}/none/x.json cannot be written: No such file or directory" in done.stderr
