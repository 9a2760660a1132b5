"""Who reaches the API and the pods, and what watches them: Service, network policies, monitor, alerts, dashboards."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.helm.charts import CHART, DEFAULT, MONITORING, head, of_kind, options, pods, refusal, rendered, the

OPEN = "api.existingSecret=tokens"


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule"])
def test_kinds_of_prometheus_operator_are_made_only_where_it_is(newest: Path, kind: str) -> None:
    assert of_kind(rendered(newest, (DEFAULT,), (OPEN,), (MONITORING,)), kind)
    assert not of_kind(rendered(newest, (DEFAULT,), (OPEN,), ()), kind)


@pytest.mark.parametrize("kind", ["Service", "PodMonitor", "PrometheusRule"])
def test_an_api_without_tokens_is_reached_by_nobody_and_missed_by_no_alert(newest: Path, kind: str) -> None:
    objects = rendered(newest)
    assert not of_kind(objects, kind)
    assert "--host" not in the(objects, "RayJob")["spec"]["entrypoint"]
    assert "8420" not in str(of_kind(objects, "NetworkPolicy"))


def test_an_api_with_tokens_listens_beyond_loopback_and_has_them_as_a_file(newest: Path) -> None:
    objects = rendered(newest, (DEFAULT,), (OPEN,))
    entrypoint = the(objects, "RayJob")["spec"]["entrypoint"]
    assert "--host 0.0.0.0 --token-file /etc/nereus/tokens" in entrypoint
    (container,) = head(objects)["spec"]["containers"]
    assert {"name": "tokens", "mountPath": "/etc/nereus", "readOnly": True} in container["volumeMounts"]
    (volume,) = [found for found in head(objects)["spec"]["volumes"] if found["name"] == "tokens"]
    assert volume["secret"]["secretName"] == "tokens"
    assert volume["secret"]["items"] == [{"key": "tokens", "path": "tokens"}]
    assert {"name": "NEREUS_TOKEN_FILE", "value": "/etc/nereus/tokens"} in container["env"]


def test_token_file_of_the_chart_s_own_head_is_named_by_its_key(newest: Path) -> None:
    objects = rendered(newest, (DEFAULT,), (OPEN, "api.tokensKey=who", "api.tokenFile=/etc/nereus/who"))
    assert "--token-file /etc/nereus/who" in the(objects, "RayJob")["spec"]["entrypoint"]
    (volume,) = [found for found in head(objects)["spec"]["volumes"] if found["name"] == "tokens"]
    assert volume["secret"]["items"] == [{"key": "who", "path": "who"}]


@pytest.mark.parametrize("place", ["/tmp/tokens", "/etc/tokens", "/var/lib/nereus/tokens", "/etc/nereus/others"])
def test_token_file_of_the_chart_s_own_head_is_refused_elsewhere(newest: Path, place: str) -> None:
    """Its folder is mounted over: two mounts of one path, or nothing left of what was in it."""
    said = refusal(newest, *options((DEFAULT,), OPEN, f"api.tokenFile={place}"))
    assert f"api.tokenFile is {place}, but rayCluster.create is true" in said
    assert "at /etc/nereus/tokens; leave api.tokenFile empty" in said


def test_on_a_cluster_of_another_the_token_file_is_where_its_head_has_it(newest: Path) -> None:
    theirs = ("rayCluster.create=false", "rayCluster.name=theirs")
    open_to = rendered(newest, (DEFAULT,), (*theirs, OPEN, "api.tokenFile=/run/theirs/tokens"))
    assert "--host 0.0.0.0 --token-file /run/theirs/tokens" in the(open_to, "RayJob")["spec"]["entrypoint"]
    assert "--token-file" not in the(rendered(newest, (DEFAULT,), theirs), "RayJob")["spec"]["entrypoint"]
    assert not of_kind(rendered(newest, (DEFAULT,), (*theirs, OPEN, "controller.enabled=false")), "RayJob")


def test_service_and_monitor_meet_the_port_of_the_head(newest: Path) -> None:
    objects = rendered(newest, (DEFAULT,), (OPEN, "api.port=9000", "api.service.port=80"))
    (container,) = head(objects)["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["nereus-api"] == 9000
    assert the(objects, "Service")["spec"]["ports"][0] | {"name": ""} == {
        "name": "", "port": 80, "targetPort": 9000, "protocol": "TCP",
    }  # fmt: skip
    (endpoint,) = the(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in ports
    assert endpoint["authorization"]["credentials"] == {"name": "tokens", "key": "viewer"}
    assert "--port 9000" in the(objects, "RayJob")["spec"]["entrypoint"]


def test_network_lets_in_the_cluster_the_operator_the_release_and_clients(newest: Path) -> None:
    policies = {
        found["metadata"]["name"]: found["spec"] for found in of_kind(rendered(newest, (DEFAULT,), (OPEN,)), "NetworkPolicy")
    }
    cluster = {"matchLabels": {"ray.io/cluster": "blue-nereus"}}
    assert policies["blue-nereus-cluster"]["podSelector"] == cluster
    assert policies["blue-nereus-cluster"]["ingress"] == [{"from": [{"podSelector": cluster}]}]
    dashboard, api = policies["blue-nereus-head"]["ingress"]
    assert [port["port"] for rule in (dashboard, api) for port in rule["ports"]] == [8265, 8420]
    assert "kuberay-operator" in str(dashboard["from"])
    assert "monitoring" in str(api["from"])


def test_network_lets_in_who_is_named_to_the_port_that_is_theirs(newest: Path) -> None:
    settings = (
        "networkPolicy.submitters[0].podSelector.matchLabels.may=submit",
        "networkPolicy.clients[0].podSelector.matchLabels.may=look",
    )
    policies = of_kind(rendered(newest, (DEFAULT,), (OPEN, *settings)), "NetworkPolicy")
    (head_policy,) = [found["spec"] for found in policies if found["metadata"]["name"].endswith("-head")]
    ports = {str(rule["from"]): rule["ports"][0]["port"] for rule in head_policy["ingress"]}
    assert [port for peers, port in ports.items() if "'may': 'submit'" in peers] == [8265]
    assert [port for peers, port in ports.items() if "'may': 'look'" in peers] == [8420]


def test_alerts_and_dashboards_are_those_of_the_files_to_the_letter(newest: Path) -> None:
    """Both have {{ }} of their own, which must not be taken for the chart's."""
    objects = rendered(newest, (DEFAULT,), (OPEN,))
    alerts = (CHART / "files" / "alerts.yaml").read_text(encoding="utf-8")
    assert "{{" in alerts
    assert the(objects, "PrometheusRule")["spec"] == yaml.safe_load(alerts)
    files = {path.name: path.read_text(encoding="utf-8").strip() for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert len(files) == 5
    maps = of_kind(objects, "ConfigMap")
    assert {name: text for found in maps for name, text in found["data"].items()} == files
    assert all(found["metadata"]["labels"]["grafana_dashboard"] == "1" for found in maps)


def test_submitter_and_tests_have_the_labels_that_the_network_lets_in(newest: Path) -> None:
    objects = rendered(newest, (DEFAULT,), (OPEN,))
    (policy,) = [found for found in of_kind(objects, "NetworkPolicy") if found["metadata"]["name"].endswith("-head")]
    wanted = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"].items()
    assert wanted <= the(objects, "RayJob")["spec"]["submitterPodTemplate"]["metadata"]["labels"].items()
    assert wanted <= the(objects, "Pod")["metadata"]["labels"].items()


def test_pods_of_the_cluster_keep_the_name_label_of_kuberay(newest: Path) -> None:
    """Its head Service selects by app.kubernetes.io/name: kuberay."""
    cluster = [pod for name, pod in pods(rendered(newest)) if name.startswith("RayCluster/")]
    assert len(cluster) == 2
    assert not [pod for pod in cluster if "app.kubernetes.io/name" in pod["metadata"]["labels"]]
