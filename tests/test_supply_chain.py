"""What images install: the lock satisfies what is declared and has digests, no licence is forbidden, the SBOM is valid."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", re.MULTILINE)
FORBIDDEN = re.compile(
    r"GPL|General Public Licen|SSPL|Server Side Public|Commons Clause|Proprietary|UNKNOWN|^\s*$", re.IGNORECASE
)
"""Licences under which nothing is shipped; and none at all, which is no permission."""

LOCKS = ("requirements/image.txt", "requirements/cuda.txt")


def pins(name: str) -> dict[str, str]:
    """Canonical name -> version of a file of pins."""
    return {canonicalize_name(name): version for name, version in PIN.findall((ROOT / name).read_text(encoding="utf-8"))}


def locked() -> dict[str, str]:
    return {name: version for lock in LOCKS for name, version in pins(lock).items()}


def declared() -> list[Requirement]:
    """What the package and the images ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "requirements" / "image.in").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in (*project["dependencies"], *lines) if not line.startswith("#")]


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_lock_satisfies(requirement: Requirement) -> None:
    assert requirement.specifier.contains(locked()[canonicalize_name(requirement.name)])


def test_lock_has_one_version_of_each_and_no_torch_beside_cuda() -> None:
    image, cuda = (pins(lock) for lock in LOCKS)
    assert set(image) & set(cuda) == set()
    assert "torch" in cuda
    assert [name for name in image if name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"] == []


def test_lock_agrees_with_what_was_tested_together() -> None:
    tested = pins("constraints.txt")
    differ = {name: (version, tested[name]) for name, version in locked().items() if tested.get(name, version) != version}
    assert differ == {}
    assert pins("requirements/image.txt").keys() - tested.keys() == set()


@pytest.mark.parametrize("lock", LOCKS)
def test_each_version_has_a_digest(lock: str) -> None:
    blocks = re.split(r"\n(?=[a-z])", (ROOT / lock).read_text(encoding="utf-8"))[1:]
    assert len(blocks) == len(pins(lock))
    assert [block for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", block)] == []


def licences() -> dict[str, tuple[str, str]]:
    """Canonical name -> version and licence, as docs/licenses.md has it."""
    rows = re.findall(
        r"^\| (\S+) \| (\d\S*) \| (.*?) \| ", (ROOT / "docs" / "licenses.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {canonicalize_name(name): (version, licence) for name, version, licence in rows}


def test_licences_are_listed_for_what_is_locked() -> None:
    expected = {**pins("requirements/image.txt"), "torch": locked()["torch"]}
    assert {name: version for name, (version, _) in licences().items()} == expected


def test_nothing_is_shipped_under_a_forbidden_licence() -> None:
    assert {name: licence for name, (_, licence) in licences().items() if FORBIDDEN.search(licence)} == {}


@pytest.mark.parametrize("licence", ["GNU General Public License v3 (GPLv3)", "AGPL-3.0-only", "LGPL-2.1+", "UNKNOWN", ""])
def test_licence_is_forbidden(licence: str) -> None:
    assert FORBIDDEN.search(licence)


def test_licences_document_is_what_installed_distributions_state() -> None:
    written = subprocess.run(
        [sys.executable, "requirements/licenses.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert written.stdout == (ROOT / "docs" / "licenses.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("lock", LOCKS)
def test_bill_of_materials_is_valid_and_has_what_is_locked(lock: str, tmp_path: Path) -> None:
    target = tmp_path / "sbom.cdx.json"
    tool = str(Path(sys.executable).parents[1] / "sbom" / "bin" / "cyclonedx-py")
    options = ["--pyproject", "pyproject.toml", "--output-format", "JSON", "--validate", "--output-file", str(target)]
    subprocess.run([tool, "requirements", lock, *options], cwd=ROOT, check=True, capture_output=True)
    bill = json.loads(target.read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "nereus-rl"
    assert {canonicalize_name(part["name"]): part["version"] for part in bill["components"]} == pins(lock)


def test_nothing_that_is_installed_slows_the_start_of_each_process_of_ray() -> None:
    """Ray imports jsonschema, which compiles a grammar of URIs for two seconds wherever it finds the package of it."""
    assert importlib.util.find_spec("rfc3987_syntax") is None, (
        "`pip show rfc3987-syntax` says who wants it: not in this .venv"
    )
