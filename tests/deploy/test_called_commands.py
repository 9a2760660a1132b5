"""Every command of Nereus that deployment files and how-to pages call is one that there is, options included."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from nereus.cli.app import app
from tests.deploy.programs import ROOT, program
from tests.helm.charts import DEFAULT, rendered, the, workers

CALL = re.compile(
    r"(?:python -m nereus|/opt/nereus/bin/nereus|(?<![\w/.-])nereus) ((?:controller|leave|run|status|plan)\b[^\n`|;)#]*)"
)
"""A call in a unit, in compose or in a page, up to the end of its line or what a shell would read as such."""


def options_of(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of a call that name a command, and the options that it has; fails where there is no such command."""
    found = typer.main.get_command(app)
    path = []
    for word in words:
        known = getattr(found, "commands", {})
        if word not in known:
            break
        found = known[word]
        path.append(word)
    assert path, f"no command in {words}"
    assert not getattr(found, "commands", {}), f"{' '.join(path)} needs one more word, in {words}"
    return path, [option for param in found.params for option in param.opts]


def check(call: str) -> None:
    """The call's command exists, and has each option that it names."""
    words = shlex.split(call)
    path, options = options_of(words)
    named = [word.partition("=")[0] for word in words[len(path) :] if word.startswith("--")]
    assert [option for option in named if option not in options] == [], call


def calls_of_the_chart() -> Iterator[str]:
    settings = ("api.existingSecret=tokens", "controller.minDevices=1", "controller.maxDevices=2")
    objects = rendered(program("helm4"), (DEFAULT,), settings)
    yield the(objects, "RayJob")["spec"]["entrypoint"].removeprefix("python -m nereus ")
    (container,) = workers(objects)["template"]["spec"]["containers"]
    yield shlex.join(container["lifecycle"]["preStop"]["exec"]["command"][3:])


def test_chart_calls_what_there_is() -> None:
    calls = list(calls_of_the_chart())
    assert [call.split()[0] for call in calls] == ["controller", "leave"]
    for call in calls:
        check(call)


@pytest.mark.parametrize("name", ["rayjob.yaml", "quickstart.yaml"])
def test_manifest_calls_what_there_is(name: str) -> None:
    job = yaml.safe_load((ROOT / "deploy" / "kuberay" / name).read_text(encoding="utf-8"))
    check(job["spec"]["entrypoint"].removeprefix("python -m nereus "))


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "deploy" / "systemd").glob("*.service")),
        ROOT / "deploy" / "compose" / "docker-compose.yaml",
        *(ROOT / "docs" / "how-to" / f"{page}.md" for page in ("kuberay", "ray-cluster", "compose")),
        ROOT / "helm" / "nereus" / "templates" / "NOTES.txt",
    ],
    ids=lambda path: path.name,
)
def test_file_calls_what_there_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    calls = CALL.findall(text)
    assert calls or "nereus-ray-head" in str(path)
    for call in calls:
        check(call)
