"""The wheel: both packages and the examples, the same from the sdist, and it works where nothing of the clone is in reach.

The new environment takes the libraries from the one that runs the tests, by a path file: editable installs are not followed
through it, so `nereus` can only come from the wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def built(source: Path, target: str, folder: Path) -> Path:
    """The wheel or sdist of a source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (path,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def nereus(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment of its own, into which only the wheel was installed."""
    folder = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "nereus"


def run(command: list[str], folder: Path, timeout_s: float = 120) -> str:
    """What a command prints to standard output, run in a folder with nothing of ours in its environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked(folder: str) -> set[str]:
    """The files of a folder that are under version control; skips the test in a tree that is not."""
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is not under version control: it is an unpacked sdist, whose own list is what it has")
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(listed.stdout.split())


def test_wheel_has_both_packages_and_the_examples_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == tracked("nereus") | tracked("actors") | {f"nereus/{name}" for name in tracked("examples")}


def test_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    again = built(tree, "wheel", tmp_path)
    assert again.read_bytes() == wheel.read_bytes()


def test_sdist_has_all_that_is_under_version_control(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sorted(tracked(".") - names) == []
    assert [name for name in names if name.startswith((".venv", ".cache", "runs", "dist", "site/"))] == []


def test_installed_package_is_the_one_of_the_wheel(nereus: Path, tmp_path: Path) -> None:
    python = nereus.with_name("python")
    where = run([str(python), "-c", "import nereus, actors; print(nereus.__file__); print(actors.__file__)"], tmp_path)
    assert all(Path(line).is_relative_to(nereus.parents[1]) for line in where.split())


def test_installed_command_plans_the_quickstart_in_any_folder(nereus: Path, tmp_path: Path) -> None:
    told = json.loads(run([str(nereus), "plan", "quickstart", "--json"], tmp_path).splitlines()[-1])
    here = run([sys.executable, "-m", "nereus", "plan", str(ROOT / "examples" / "quickstart.yaml"), "--json"], ROOT)
    assert told == json.loads(here.splitlines()[-1])


@pytest.mark.ray
def test_installed_command_runs_the_quickstart_in_any_folder(nereus: Path, tmp_path: Path) -> None:
    told = run([str(nereus), "run", "quickstart", "--steps", "3", "--json"], tmp_path, timeout_s=240)
    summary = json.loads(told.splitlines()[-1])
    assert summary["steps"] == 3
    assert len(list((tmp_path / "runs").iterdir())) == 1
