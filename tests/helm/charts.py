"""The chart under a real helm: what it renders, as objects, and what it says when it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.programs import ROOT, call

CHART = ROOT / "helm" / "nereus"
DEFAULT = "values.yaml"
FILES: tuple[tuple[str, ...], ...] = (
    (DEFAULT,),
    ("values-dev.yaml",),
    ("values-gpu.yaml",),
    ("values-ha.yaml",),
    ("values-gpu.yaml", "values-ha.yaml"),
)
"""Every values file, and the two that belong together."""

MONITORING = "monitoring.coreos.com/v1"
RELEASE, NAMESPACE = "blue", "research"

Object = Mapping[str, Any]


def options(files: tuple[str, ...] = (DEFAULT,), *settings: str) -> list[str]:
    """helm's options for values files of the chart, and for single values as `--set` takes them."""
    named = [part for name in files for part in ("--values", str(CHART / name))]
    return [*named, *(part for setting in settings for part in ("--set", setting))]


@cache
def rendered(
    helm: Path, files: tuple[str, ...] = (DEFAULT,), settings: tuple[str, ...] = (), apis: tuple[str, ...] = (MONITORING,)
) -> tuple[Object, ...]:
    """The objects that `helm template` makes, in its order; the test's assertion shows what helm said if it makes none."""
    known = [part for api in apis for part in ("--api-versions", api)]
    done = call(helm, "template", RELEASE, CHART, "--namespace", NAMESPACE, *options(files, *settings), *known)
    assert done.returncode == 0, done.stderr
    return tuple(found for found in yaml.safe_load_all(done.stdout) if found)


def refusal(helm: Path, *arguments: str | Path) -> str:
    """What helm says when it refuses values; the test fails if it does not refuse."""
    done = call(helm, "template", RELEASE, CHART, "--namespace", NAMESPACE, *arguments)
    assert done.returncode != 0, "helm rendered it"
    return done.stderr


def of_kind(objects: tuple[Object, ...], kind: str) -> list[Object]:
    """The objects of one kind."""
    return [found for found in objects if found["kind"] == kind]


def the(objects: tuple[Object, ...], kind: str) -> Object:
    """The one object of a kind."""
    (found,) = of_kind(objects, kind)
    return found


def pods(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    """Every pod that will be: its name here, and its metadata and spec; those in KubeRay's objects included."""
    for found in objects:
        name, spec = f"{found['kind']}/{found['metadata']['name']}", found.get("spec", {})
        if found["kind"] == "Pod":
            yield name, found
        elif found["kind"] == "RayJob":
            yield name, spec["submitterPodTemplate"]
        elif found["kind"] == "RayCluster":
            yield f"{name}/head", spec["headGroupSpec"]["template"]
            for group in spec["workerGroupSpecs"]:
                yield f"{name}/{group['groupName']}", group["template"]


def containers(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    """Every container that will be; the autoscaler's options are one, which KubeRay puts beside the head."""
    for name, pod in pods(objects):
        yield from ((f"{name}/{container['name']}", container) for container in pod["spec"]["containers"])
    for cluster in of_kind(objects, "RayCluster"):
        if "autoscalerOptions" in cluster["spec"]:
            yield "autoscaler", cluster["spec"]["autoscalerOptions"]


def head(objects: tuple[Object, ...]) -> Object:
    """The head's pod."""
    return dict(pods(objects))[f"RayCluster/{RELEASE}-nereus/head"]


def workers(objects: tuple[Object, ...]) -> Object:
    """The first group of workers."""
    group: Object = the(objects, "RayCluster")["spec"]["workerGroupSpecs"][0]
    return group


def worker_settings(**fields: Any) -> tuple[str, ...]:
    """One group of workers as `--set` takes it."""
    group = {"name": "devices", "accelerator": "cpu", "devicesPerNode": 4, "minReplicas": 1, "maxReplicas": 3, **fields}
    sizes = {
        f"resources.{bound}.{what}": size
        for bound in ("requests", "limits")
        for what, size in (("cpu", 1), ("memory", "1Gi"))
    }
    return tuple(f"rayCluster.workerGroups[0].{name}={value}" for name, value in {**group, **sizes}.items())
