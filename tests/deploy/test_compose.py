"""docker-compose: valid by Docker's own client, closed to other machines, and without a secret in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import nereus
from tests.deploy.programs import ROOT, call, program

FOLDER = ROOT / "deploy" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "docker-compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("head", "controller", "worker")


def test_docker_s_own_client_accepts_it() -> None:
    done = call(program("docker-compose"), "--file", "docker-compose.yaml", "config", folder=FOLDER)
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load(done.stdout)
    assert set(resolved["services"]) == set(SERVICES)
    assert resolved["services"]["controller"]["command"] == SERVICES["controller"]["command"]
    assert resolved["services"]["worker"]["command"][3] == '--resources={"nereus_device": 4}'


def test_ports_are_published_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned_and_ours_is_of_this_version() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), name
    assert {SERVICES[name]["image"] for name in OURS} == {f"nereus:{nereus.__version__}"}


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_no_capability_and_a_read_only_root(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service


def test_secrets_are_files_that_git_does_not_see() -> None:
    assert {found["file"].split("/")[1] for found in COMPOSE["secrets"].values()} == {"secrets"}
    assert "secrets/" in (FOLDER / ".gitignore").read_text(encoding="utf-8").splitlines()
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            if re.search("token|password", variable, re.IGNORECASE):
                assert value.startswith("/run/secrets/") or variable.endswith("MODE"), variable
                assert value == "token" or value.rpartition("/")[2] in service["secrets"], variable


def test_what_is_mounted_from_the_repository_is_there() -> None:
    mounts = [volume for service in SERVICES.values() for volume in service.get("volumes", []) if volume.startswith(".")]
    assert len(mounts) == 4
    for volume in mounts:
        source, _, mode = volume.split(":")
        assert (FOLDER / source).exists(), source
        assert mode == "ro"


def test_workers_see_the_runs_folders_of_the_head_where_checkpoints_go() -> None:
    assert SERVICES["head"]["volumes"] == SERVICES["worker"]["volumes"] == ["journals:/var/lib/nereus"]
    assert "--folder /var/lib/nereus " in SERVICES["controller"]["command"][-1]


@pytest.mark.parametrize(("answers", "starts"), [("0", 0), ("1", 3)])
def test_controller_is_started_whenever_its_api_does_not_answer(tmp_path: Path, answers: str, starts: int) -> None:
    """The service's own loop, with programs that only note how they were called; the third sleep ends it."""
    for name, does in {
        "python": f"exit {answers}",
        "ray": "exit 1",
        "sleep": "[ $(grep -c ^sleep calls) -lt 3 ] || kill $PPID",
    }.items():
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> calls\n{does}\n')
        (tmp_path / name).chmod(0o755)
    *shell, script = SERVICES["controller"]["command"]
    subprocess.run([*shell, script], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=30, check=False)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls.count("sleep 30") == 3
    started = [call for call in calls if call.startswith("ray ")]
    assert len(started) == starts
    assert all(
        call.startswith("ray job submit --address=http://head:8265 -- python -m nereus controller start ")
        for call in started
    )


def test_prometheus_scrapes_the_head_with_the_viewer_s_token_and_has_the_alerts() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
    (scrape,) = config["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["head:8420"]}]
    assert scrape["authorization"]["credentials_file"] == "/run/secrets/viewer"
    assert "viewer" in SERVICES["prometheus"]["secrets"]
    (mount,) = [volume for volume in SERVICES["prometheus"]["volumes"] if "alerts" in volume]
    assert mount.split(":")[1] == f"/etc/prometheus/{config['rule_files'][0]}"
    assert "--port 8420" in SERVICES["controller"]["command"][-1]


def test_prometheus_itself_accepts_its_configuration(tmp_path: Path) -> None:
    for name, target in (("prometheus.yaml", "prometheus.yml"), ("../../helm/nereus/files/alerts.yaml", "alerts.yaml")):
        text = (FOLDER / name).read_text(encoding="utf-8").replace("/run/secrets/viewer", str(tmp_path / "viewer"))
        (tmp_path / target).write_text(text, encoding="utf-8")
    (tmp_path / "viewer").write_text("token", encoding="utf-8")
    done = call(program("promtool"), "check", "config", "prometheus.yml", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards/nereus.yaml").read_text())["providers"]
    (mount,) = [volume for volume in SERVICES["grafana"]["volumes"] if "dashboards" in volume]
    assert mount.split(":")[1] == provider["options"]["path"]
