"""Each switch: what is there with it, and what is not without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helm.charts import (
    DEFAULT,
    containers,
    head,
    of_kind,
    pods,
    rendered,
    the,
    worker_settings,
    workers,
)

OPEN = "api.existingSecret=tokens"


@pytest.mark.parametrize(
    ("switch", "kind", "more"),
    [
        ("controller.enabled", "RayJob", ()),
        ("rayCluster.create", "RayCluster", ("rayCluster.name=theirs",)),
        ("rayCluster.create", "PersistentVolumeClaim", ("rayCluster.name=theirs",)),
        ("api.service.enabled", "Service", (OPEN,)),
        ("persistence.enabled", "PersistentVolumeClaim", ()),
        ("serviceAccount.create", "ServiceAccount", ()),
        ("networkPolicy.enabled", "NetworkPolicy", ()),
        ("podDisruptionBudget.enabled", "PodDisruptionBudget", ()),
        ("monitoring.podMonitor.enabled", "PodMonitor", (OPEN,)),
        ("monitoring.prometheusRule.enabled", "PrometheusRule", (OPEN,)),
        ("monitoring.dashboards.enabled", "ConfigMap", ()),
        ("tests.enabled", "Pod", ()),
    ],
)
def test_switch_has_its_object_on_and_not_off(newest: Path, switch: str, kind: str, more: tuple[str, ...]) -> None:
    on = rendered(newest, (DEFAULT,), (*more, f"{switch}=true"))
    off = rendered(newest, (DEFAULT,), (*more, f"{switch}=false"))
    assert of_kind(on, kind)
    assert not of_kind(off, kind)


def test_head_offers_no_cpus_and_its_dashboard_is_reachable(newest: Path) -> None:
    params = the(rendered(newest), "RayCluster")["spec"]["headGroupSpec"]["rayStartParams"]
    assert params == {"num-cpus": "0", "dashboard-host": "0.0.0.0"}


def test_controller_starts_on_the_chart_s_cluster_or_on_the_one_that_is_named(newest: Path) -> None:
    ours = rendered(newest)
    theirs = rendered(newest, (DEFAULT,), ("rayCluster.create=false", "rayCluster.name=theirs"))
    name = the(ours, "RayCluster")["metadata"]["name"]
    assert the(ours, "RayJob")["spec"]["clusterSelector"] == {"ray.io/cluster": name}
    assert the(theirs, "RayJob")["spec"]["clusterSelector"] == {"ray.io/cluster": "theirs"}


def test_rayjob_keeps_to_what_kuberay_allows_with_a_selected_cluster(newest: Path) -> None:
    """By its validation: no cluster of its own, suspension, shutdown or lifetime, and a name of at most 47 characters."""
    long = "a-release-with-a-name-that-goes-on-and-on"
    job = the(rendered(newest, (DEFAULT,), (f"fullnameOverride={long}", "controller.generation=999")), "RayJob")
    assert not {"rayClusterSpec", "suspend", "ttlSecondsAfterFinished", "backoffLimit"} & set(job["spec"])
    assert job["spec"]["shutdownAfterJobFinishes"] is False
    assert len(job["metadata"]["name"]) <= 47


def test_another_generation_is_another_rayjob(newest: Path) -> None:
    names = {
        the(rendered(newest, (DEFAULT,), (f"controller.generation={n}",)), "RayJob")["metadata"]["name"] for n in (1, 2)
    }
    assert names == {"blue-nereus-controller-1", "blue-nereus-controller-2"}


def test_devices_to_ask_for_are_told_to_the_controller_only_if_given(newest: Path) -> None:
    given = rendered(newest, (DEFAULT,), ("controller.minDevices=8", "controller.maxDevices=64"))
    assert "--min-devices 8 --max-devices 64" in the(given, "RayJob")["spec"]["entrypoint"]
    assert "-devices" not in the(rendered(newest), "RayJob")["spec"]["entrypoint"]


@pytest.mark.parametrize(
    ("accelerator", "resource", "params"),
    [
        ("nvidia", {"nvidia.com/gpu": 4}, {"num-gpus": "4"}),
        ("amd", {"amd.com/gpu": 4}, {"num-gpus": "4"}),
        ("cpu", {}, {"resources": "'{\"nereus_device\": 4}'"}),
    ],
)
def test_workers_offer_their_devices_to_kubernetes_and_ray(
    newest: Path, accelerator: str, resource: dict[str, int], params: dict[str, str]
) -> None:
    group = workers(rendered(newest, (DEFAULT,), worker_settings(accelerator=accelerator)))
    (container,) = group["template"]["spec"]["containers"]
    for bound in ("requests", "limits"):
        assert {name: count for name, count in container["resources"][bound].items() if "gpu" in name} == resource
    assert group["rayStartParams"] == params


def test_bounds_of_a_group_are_kuberay_s_and_its_budget_s(newest: Path) -> None:
    objects = rendered(newest, (DEFAULT,), worker_settings(minReplicas=2, maxReplicas=5))
    group = workers(objects)
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 5)
    budgets = {budget["metadata"]["name"]: budget["spec"] for budget in of_kind(objects, "PodDisruptionBudget")}
    assert budgets["blue-nereus-head"]["minAvailable"] == 1
    assert budgets["blue-nereus-devices"]["minAvailable"] == 1, "one node at a time may be drained"
    assert budgets["blue-nereus-devices"]["selector"]["matchLabels"]["ray.io/group"] == "devices"


@pytest.mark.parametrize("least", [0, 1])
def test_a_group_of_which_the_last_node_may_go_has_no_budget(newest: Path, least: int) -> None:
    names = [
        found["metadata"]["name"]
        for found in of_kind(rendered(newest, (DEFAULT,), worker_settings(minReplicas=least)), "PodDisruptionBudget")
    ]
    assert names == ["blue-nereus-head"]


def test_autoscaler_is_version_2_and_has_an_account_only_where_it_is_on(newest: Path) -> None:
    on, off = (rendered(newest, (DEFAULT,), (f"rayCluster.autoscaling.enabled={state}",)) for state in ("true", "false"))
    assert the(on, "RayCluster")["spec"]["enableInTreeAutoscaling"] is True
    assert the(on, "RayCluster")["spec"]["autoscalerOptions"]["version"] == "v2"
    assert head(on)["spec"]["automountServiceAccountToken"] is True
    assert the(off, "RayCluster")["spec"]["enableInTreeAutoscaling"] is False
    assert "autoscalerOptions" not in the(off, "RayCluster")["spec"]
    assert not [name for name, pod in pods(off) if pod["spec"]["automountServiceAccountToken"]]


def test_fault_tolerance_takes_the_password_from_a_secret(newest: Path) -> None:
    settings = ("enabled=true", "redisAddress=redis:6379", "existingSecret=redis")
    objects = rendered(newest, (DEFAULT,), tuple(f"rayCluster.gcsFaultTolerance.{setting}" for setting in settings))
    assert the(objects, "RayCluster")["spec"]["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis:6379",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "redis-password"}}},
    }
    assert "gcsFaultToleranceOptions" not in the(rendered(newest), "RayCluster")["spec"]


def test_ray_asks_for_a_token_unless_it_is_told_not_to(newest: Path) -> None:
    def asked(*settings: str) -> Any:
        return the(rendered(newest, (DEFAULT,), settings), "RayCluster")["spec"]["authOptions"]

    assert asked() == {"mode": "token"}
    assert asked("rayCluster.auth.existingSecret=ray") == {"mode": "token", "secretName": "ray"}
    assert asked("rayCluster.auth.enabled=false") == {"mode": "disabled"}


def test_a_worker_gives_notice_before_it_ends_and_kubernetes_waits_longer(newest: Path) -> None:
    on = workers(rendered(newest, (DEFAULT,), ("leave.noticeSeconds=40", "leave.graceSeconds=20")))["template"]["spec"]
    command = on["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:4] == ["python", "-m", "nereus", "leave"]
    assert command[command.index("--notice") + 1] == "40"
    assert command[command.index("--address") + 1] == "blue-nereus-head-svc:6379"
    assert on["terminationGracePeriodSeconds"] == 60
    off = workers(rendered(newest, (DEFAULT,), ("leave.enabled=false",)))["template"]["spec"]
    assert "lifecycle" not in off["containers"][0]
    assert "terminationGracePeriodSeconds" not in off


def test_probes_ask_for_ray_s_health_and_startup_has_its_time(newest: Path) -> None:
    settings = ("probes.periodSeconds=7", "probes.startupSeconds=100", "probes.failureThreshold=5")
    asked = [
        container
        for name, container in containers(rendered(newest, (DEFAULT,), settings))
        if "/ray-" in name and "submitter" not in name
    ]
    assert len(asked) == 2
    for container in asked:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"] == {"path": "/api/healthz", "port": 52365}
        assert container["startupProbe"]["failureThreshold"] * 7 >= 100
        assert (container["startupProbe"]["failureThreshold"] - 1) * 7 < 100
        assert container["livenessProbe"]["failureThreshold"] == 5


def test_journals_are_on_the_claim_that_outlives_the_release(newest: Path) -> None:
    objects = rendered(newest)
    claim = the(objects, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (volume,) = [found for found in head(objects)["spec"]["volumes"] if found["name"] == "journals"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (mount,) = [found for found in head(objects)["spec"]["containers"][0]["volumeMounts"] if found["name"] == "journals"]
    assert f"--folder {mount['mountPath']} " in the(objects, "RayJob")["spec"]["entrypoint"]


def test_journals_go_to_another_claim_or_to_none(newest: Path) -> None:
    def volume(setting: str) -> Any:
        (found,) = [v for v in head(rendered(newest, (DEFAULT,), (setting,)))["spec"]["volumes"] if v["name"] == "journals"]
        return found

    assert volume("persistence.existingClaim=theirs")["persistentVolumeClaim"] == {"claimName": "theirs"}
    assert volume("persistence.enabled=false")["emptyDir"] == {}


def test_image_is_that_of_the_chart_a_tag_or_a_digest(newest: Path) -> None:
    def image(*settings: str) -> set[str]:
        return {
            container["image"]
            for name, container in containers(rendered(newest, (DEFAULT,), settings))
            if name != "autoscaler"
        }

    assert image() == {"nereus:0.1.0"}
    assert image("image.repository=r.example/n", "image.tag=x") == {"r.example/n:x"}
    digest = "sha256:" + "a" * 64
    assert image("image.tag=x", f"image.digest={digest}") == {f"nereus@{digest}"}
