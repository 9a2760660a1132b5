"""helm 3 and helm 4 lint, render, try to install and package the chart, with every values file, and agree on the objects."""

from __future__ import annotations

import base64
import gzip
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import nereus
from tests.deploy.programs import call, program
from tests.helm.charts import CHART, FILES, MONITORING, NAMESPACE, RELEASE, options, rendered
from tests.helm.discovery import kubernetes


@pytest.mark.parametrize("files", FILES, ids="+".join)
def test_chart_passes_the_strict_lint_of(helm: Path, files: tuple[str, ...]) -> None:
    done = call(helm, "lint", "--strict", CHART, *options(files))
    assert done.returncode == 0, done.stdout
    assert "0 chart(s) failed" in done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A Kubernetes that only says what it has."""
    with kubernetes() as address:
        yield address


def dry_run(helm: Path, server: str, files: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """An installation that is not carried out. The server has no openAPI; objects are held to their schemas elsewhere."""
    how = ["--dry-run=client", "--disable-openapi-validation", "--namespace", NAMESPACE, "--kube-apiserver", server]
    return call(helm, "install", RELEASE, CHART, *how, *options(files))


@pytest.mark.parametrize("files", FILES, ids="+".join)
def test_chart_installs_in_a_dry_run_of(helm: Path, server: str, files: tuple[str, ...]) -> None:
    done = dry_run(helm, server, files)
    assert done.returncode == 0, done.stderr
    assert "STATUS: pending-install" in done.stdout
    assert f"helm -n {NAMESPACE} test {RELEASE}" in done.stdout


def test_notes_tell_what_to_do_next(helm: Path, server: str) -> None:
    said = dry_run(helm, server, ("values-ha.yaml",)).stdout
    assert "ray job submit --address http://127.0.0.1:8265 --working-dir . -- python -m nereus run JOB.yaml" in said
    assert "port-forward service/blue-nereus-head-svc 8265" in said
    assert "port-forward service/blue-nereus-api 8420:8420" in said
    assert "get secret nereus-ray" in said
    assert "get secret nereus-api" in said


@pytest.mark.parametrize("apis", [(), (MONITORING,)], ids=["bare", "with Prometheus' operator"])
@pytest.mark.parametrize("files", FILES, ids="+".join)
def test_both_helms_render_the_same(files: tuple[str, ...], apis: tuple[str, ...]) -> None:
    ours, theirs = (rendered(program(name), files, (), apis) for name in ("helm3", "helm4"))
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
    assert len(ours) >= 4


def test_rendering_twice_gives_the_same(newest: Path) -> None:
    first = rendered(newest)
    rendered.cache_clear()
    assert rendered(newest) == first


def test_names_of_objects_are_unique(newest: Path) -> None:
    for files in FILES:
        names = [(found["kind"], found["metadata"]["name"]) for found in rendered(newest, files)]
        assert len(set(names)) == len(names)


def test_chart_packages_with_its_files(helm: Path, tmp_path: Path) -> None:
    done = call(helm, "package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("nereus-*.tgz")
    with tarfile.open(package) as archive:
        names = archive.getnames()
    assert "nereus/values.schema.json" in names
    assert "nereus/files/alerts.yaml" in names
    assert {f"nereus/{name}" for files in FILES for name in files} <= set(names)
    assert not [name for name in names if "/crds/" in name]


def test_a_release_fits_into_the_secret_that_helm_keeps_it_in(newest: Path, tmp_path: Path) -> None:
    """helm keeps chart and manifest, compressed and in base64, in a Secret, which may have 1 MiB."""
    assert call(newest, "package", CHART, "--destination", tmp_path).returncode == 0
    (package,) = tmp_path.glob("nereus-*.tgz")
    manifest = call(newest, "template", RELEASE, CHART, "--api-versions", MONITORING, *options(("values-gpu.yaml",))).stdout
    stored = base64.b64encode(package.read_bytes() + gzip.compress(manifest.encode()))
    assert len(stored) < 2**20 / 2


def test_chart_carries_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == nereus.__version__
