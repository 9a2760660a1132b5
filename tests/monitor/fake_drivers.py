"""A driver that is not there: NVML's library compiled from `fake_nvml.c`, and what its file says of the devices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 2**30

H100 = f"{80 * GIB} 18 6 5 16 0 NVIDIA H100 80GB HBM3"
A100_40 = f"{40 * GIB} 12 5 4 16 0 NVIDIA A100-SXM4-40GB"
V100 = f"{16 * GIB} 6 2 3 16 -1 Tesla V100-SXM2-16GB"
B200 = f"{180 * GIB} 18 7 5 16 0 NVIDIA B200"
L40S = f"{48 * GIB} -1 -1 4 16 -1 NVIDIA L40S"
GH200 = f"{96 * GIB} 18 6 5 16 0 NVIDIA GH200 480GB"


def library(folder: Path) -> Path:
    """The folder of a compiled library.

    Skips without a C compiler, since the real pynvml loads nothing but a shared library; what is made of an inventory
    (tests/spec/test_inventory_file.py) is tested everywhere.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("pynvml loads a shared library only, and there is no C compiler to make one with")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True)
    return folder


def environment(library: Path, devices: Sequence[str] | None) -> dict[str, str]:
    """The environment of a process that finds these devices; None: a library without a driver."""
    found = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    found.pop("FAKE_NVML", None)
    if devices is not None:
        listed = library / "devices"
        listed.write_text("".join(f"{line}\n" for line in devices))
        found["FAKE_NVML"] = str(listed)
    return found


def nereus(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, since a library is loaded once in each."""
    command = [sys.executable, "-m", "nereus", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
