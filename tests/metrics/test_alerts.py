"""The alerts: each fires where it must and is silent where it must, in promtool; each has a runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nereus.metrics.exposition import JOB_LABEL
from nereus.metrics.table import METRICS, OF_JOBS
from tests.metrics.queries import selectors
from tests.metrics.tools import found

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm" / "nereus" / "files" / "alerts.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
UNIT_TESTS = sorted((Path(__file__).parent / "alerts").glob("*.yaml"))
PROMTOOL = found("promtool")
SERIES = {name: metric for metric in METRICS for name in metric.series()}

ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
NAMES = [alert["alert"] for alert in ALERTS]

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH: Debian's package prometheus has it")


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    ended = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs_promtool
def test_rules_are_valid() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


@needs_promtool
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_alerts_fire_where_they_must_and_are_silent_elsewhere(path: Path) -> None:
    promtool("test", "rules", str(path))


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [
        case
        for path in UNIT_TESTS
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
        for case in test.get("alert_rule_test", ())
    ]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(NAMES)
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == set(NAMES)
    assert len(set(NAMES)) == len(NAMES)


def test_healthy_day_has_every_series_that_alerts_look_at() -> None:
    (test,) = yaml.safe_load((Path(__file__).parent / "alerts" / "healthy.yaml").read_text(encoding="utf-8"))["tests"]
    there = {series["series"].partition("{")[0] for series in test["input_series"]}
    assert {name for alert in ALERTS for name, _ in selectors(alert["expr"])} <= there


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_alert_asks_for_metrics_and_labels_that_there_are(alert: dict[str, Any]) -> None:
    asked = selectors(alert["expr"])
    assert asked
    for name, labels in asked:
        assert set(labels) <= set(SERIES[name].labels)
    of_job = any(SERIES[name] in OF_JOBS for name, _ in asked)
    said = set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
    assert said == ({JOB_LABEL} if of_job else set()), "an alert of a job says of which"


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_alert_has_severity_text_and_a_runbook_with_all_its_parts(alert: dict[str, Any]) -> None:
    name, annotations = alert["alert"], alert["annotations"]
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert annotations["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
    _, heading, rest = RUNBOOKS.read_text(encoding="utf-8").partition(f"\n## {name}\n")
    assert heading, f"docs/runbooks.md has no entry {name}"
    entry = rest.partition("\n## ")[0]
    for part in ("Meaning", "Impact", "Diagnosis", "Mitigation"):
        assert f"**{part}.**" in entry, part
    for query, _ in selectors(entry):
        assert query in SERIES, f"{query} is no metric"


def test_runbooks_are_of_alerts_that_there_are() -> None:
    assert re.findall(r"^## (Nereus\w+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE) == NAMES
