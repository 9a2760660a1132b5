"""The systemd units: valid by systemd itself, and in agreement with their environment file."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.deploy.programs import ROOT, call, program

FOLDER = ROOT / "deploy" / "systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
PROGRAMS = "/opt/nereus/bin/"


def unit(name: str) -> ConfigParser:
    """A unit; its keys keep their case, and of a key that comes twice the last counts."""
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / name)
    return parser


def environment() -> dict[str, str]:
    lines = (FOLDER / "nereus.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def verified(folder: Path, change: tuple[str, str] = ("", "")) -> str:
    """What systemd says of all units, with their programs in a folder of this test."""
    for name in ("ray", "nereus", "python"):
        path = folder / name
        path.write_text("#!/bin/sh\n", encoding="utf-8")
        path.chmod(0o755)
    for name in UNITS:
        text = (FOLDER / name).read_text(encoding="utf-8").replace(PROGRAMS, f"{folder}/").replace(*change)
        (folder / name).write_text(text, encoding="utf-8")
    done = call(program("systemd-analyze"), "verify", *(folder / name for name in UNITS))
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    assert verified(tmp_path) == ""


def test_systemd_finds_what_is_misspelt(tmp_path: Path) -> None:
    assert "TimeoutStopSecond" in verified(tmp_path, ("TimeoutStopSec=", "TimeoutStopSecond="))


def test_a_worker_has_longer_to_stop_than_its_notice() -> None:
    service = unit("nereus-ray-worker.service")["Service"]
    assert "leave --address ${HEAD} --notice ${NOTICE}" in service["ExecStop"]
    assert int(service["TimeoutStopSec"]) > int(environment()["NOTICE"])


@pytest.mark.parametrize("name", UNITS)
def test_variables_of_a_unit_are_in_the_environment_file(name: str) -> None:
    text = "\n".join(value for key, value in unit(name)["Service"].items() if key.startswith("Exec"))
    assert set(re.findall(r"\$\{?(\w+)", text)) <= set(environment())
    assert unit(name)["Service"]["EnvironmentFile"] == "/etc/nereus/nereus.env"


@pytest.mark.parametrize("name", UNITS)
def test_unit_runs_as_a_user_of_its_own_who_can_gain_nothing(name: str) -> None:
    service = unit(name)["Service"]
    assert service["User"] == "nereus"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


def test_no_token_is_in_the_environment_file() -> None:
    for name, value in environment().items():
        if "TOKEN" in name:
            assert value.startswith("/etc/nereus/")
