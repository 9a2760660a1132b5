"""Every object is valid by its kind's own schema, and what holds for all of them: security, resources, labels, no secret."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from tests.helm.charts import CHART, FILES, RELEASE, containers, of_kind, pods, rendered
from tests.helm.kinds import core_errors, errors

EVERYTHING = (
    "api.existingSecret=tokens",
    "api.service.annotations.a=b",
    "image.pullSecrets[0]=registry",
    "rayCluster.auth.existingSecret=ray",
    "rayCluster.autoscaling.enabled=true",
    "rayCluster.gcsFaultTolerance.enabled=true",
    "rayCluster.gcsFaultTolerance.redisAddress=redis:6379",
    "rayCluster.gcsFaultTolerance.existingSecret=redis",
    "rayCluster.gcsFaultTolerance.usernameKey=user",
    "rayCluster.gcsFaultTolerance.externalStorageNamespace=blue",
    "rayCluster.head.nodeSelector.zone=a",
    "rayCluster.head.tolerations[0].key=head",
    "rayCluster.head.priorityClassName=high",
    "rayCluster.head.extraEnv[0].name=A",
    "rayCluster.head.extraEnv[0].value=b",
    "rayCluster.head.extraVolumes[0].name=weights",
    "rayCluster.head.extraVolumes[0].persistentVolumeClaim.claimName=weights",
    "rayCluster.head.extraVolumeMounts[0].name=weights",
    "rayCluster.head.extraVolumeMounts[0].mountPath=/weights",
    "persistence.storageClassName=fast",
    "serviceAccount.annotations.a=b",
)
"""Every part of the templates at once."""

EXISTING = (
    "rayCluster.create=false",
    "rayCluster.name=theirs",
    "api.existingSecret=tokens",
    "api.tokenFile=/run/theirs/tokens",
)
"""On a cluster that is somebody else's."""

SPECIFIED: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    *((files, ()) for files in FILES),
    (("values.yaml",), EVERYTHING),
    (("values.yaml",), EXISTING),
]


def cases() -> list[object]:
    names = [*("+".join(files) for files in FILES), "everything", "existing cluster"]
    return [pytest.param(*case, id=name) for case, name in zip(SPECIFIED, names, strict=True)]


@pytest.mark.parametrize(("files", "settings"), cases())
def test_every_object_is_valid_by_its_schema(
    newest: Path, data_dir: Path, files: tuple[str, ...], settings: tuple[str, ...]
) -> None:
    wrong = {
        f"{found['kind']}/{found['metadata']['name']}": errors(found, data_dir)
        for found in rendered(newest, files, settings)
    }
    assert {name: said for name, said in wrong.items() if said} == {}


@pytest.mark.parametrize(("files", "settings"), cases())
def test_every_pod_is_valid_by_the_schema_of_pods(newest: Path, files: tuple[str, ...], settings: tuple[str, ...]) -> None:
    for name, pod in pods(rendered(newest, files, settings)):
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod["spec"]}
        assert core_errors(whole) == [], name


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "PodMonitor", "Service", "NetworkPolicy"])
def test_a_misspelt_field_of_an_object_is_found_by_its_schema(newest: Path, data_dir: Path, kind: str) -> None:
    wrong = copy.deepcopy(dict(of_kind(rendered(newest, ("values.yaml",), EVERYTHING), kind)[0]))
    assert errors(wrong, data_dir) == []
    wrong["spec"]["replicass"] = 1
    assert any("replicass" in said for said in errors(wrong, data_dir))


@pytest.mark.parametrize(("files", "settings"), cases())
def test_every_pod_is_secured(newest: Path, files: tuple[str, ...], settings: tuple[str, ...]) -> None:
    found = list(pods(rendered(newest, files, settings)))
    assert found
    for name, pod in found:
        context = pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] > 0, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod["spec"]), name


@pytest.mark.parametrize(("files", "settings"), cases())
def test_every_container_is_secured_and_can_write_to_its_volumes_only(
    newest: Path, files: tuple[str, ...], settings: tuple[str, ...]
) -> None:
    for name, container in containers(rendered(newest, files, settings)):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True, name
        assert context["allowPrivilegeEscalation"] is False, name
        assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert {"/tmp", "/home/nereus"} <= {mount["mountPath"] for mount in container["volumeMounts"]}, name


@pytest.mark.parametrize(("files", "settings"), cases())
def test_every_container_has_requests_and_limits(newest: Path, files: tuple[str, ...], settings: tuple[str, ...]) -> None:
    for name, container in containers(rendered(newest, files, settings)):
        for bound in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(container["resources"][bound]), name


def test_every_mount_has_its_volume_and_every_volume_its_mount(newest: Path) -> None:
    for files, settings in SPECIFIED:
        for name, pod in pods(rendered(newest, files, settings)):
            mounted = {mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}, name


@pytest.mark.parametrize(("files", "settings"), cases())
def test_every_object_says_what_it_belongs_to(newest: Path, files: tuple[str, ...], settings: tuple[str, ...]) -> None:
    for found in rendered(newest, files, settings):
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE, found["kind"]
        assert labels["app.kubernetes.io/version"], found["kind"]
        assert found["metadata"]["namespace"] == "research", found["kind"]


def test_chart_makes_no_secret_no_role_and_no_definition(newest: Path) -> None:
    kinds = {found["kind"] for files, settings in SPECIFIED for found in rendered(newest, files, settings)}
    assert not {"Secret", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "CustomResourceDefinition"} & kinds


def test_no_value_is_a_secret() -> None:
    """A value named like a secret may only name one that is there, or a key of it."""
    for path in CHART.glob("values*.yaml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[0].strip(" -") for line in lines if not line.lstrip().startswith("#")]
        like_secrets = [name for name in names if re.search("secret|token|password|credential", name, re.IGNORECASE)]
        assert set(like_secrets) <= {"existingSecret", "pullSecrets", "tokensKey", "tokenFile", "passwordKey"}, path.name
