"""The manifests for who applies them without Helm: the chart's, up to date, and valid by KubeRay's CRDs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from deploy.tools import manifests
from tests.deploy.programs import program
from tests.helm.kinds import errors

FOLDER = manifests.FOLDER
NAMES = [*manifests.FILES, "quickstart.yaml"]


def test_manifests_are_what_the_chart_makes() -> None:
    stale = [path.name for path, content in manifests.written(str(program("helm4"))).items() if path.read_text() != content]
    assert stale == [], "run `python -m deploy.tools.manifests`"


def test_folder_has_no_other_manifests() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*NAMES, "values.yaml"}


@pytest.mark.parametrize("name", NAMES)
def test_manifest_is_valid_by_its_schema(data_dir: Path, name: str) -> None:
    objects = list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))
    assert objects
    assert [said for found in objects for said in errors(found, data_dir)] == []


def test_manifests_belong_to_no_release_and_no_namespace() -> None:
    for name in manifests.FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        objects = list(yaml.safe_load_all(text))
        assert "helm" not in str(objects).lower()
        assert not [found for found in objects if "namespace" in found["metadata"]]
        assert ".svc" not in text


def test_jobs_are_for_the_cluster_of_the_manifest() -> None:
    (cluster,) = [
        found for found in yaml.safe_load_all((FOLDER / "raycluster.yaml").read_text()) if found["kind"] == "RayCluster"
    ]
    for name in ("rayjob.yaml", "quickstart.yaml"):
        job = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
        assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
