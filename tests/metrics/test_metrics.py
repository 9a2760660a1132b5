"""What Prometheus scrapes, read by Prometheus' own parser."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nereus import __version__
from nereus.metrics.exposition import JOB_LABEL, Process, Source
from nereus.metrics.requests import RequestTallies
from nereus.metrics.table import GROUPS, LABELS, METRICS, OF_JOBS, document, exposition
from nereus.runtime.projection import Projection
from tests.api.news import MIB, STORY
from tests.metrics.tools import found

PROMTOOL = found("promtool")
ROOT = Path(__file__).parents[2]
ROUTES = (("GET", "/metrics"),)
JOB = "tiny"

OF_PROCESS = {"nereus_build_info", "nereus_controller_up", "nereus_jobs"}
Series = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(text: str) -> Series:
    """Each sample by its name and labels; none is there twice."""
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def of_projection(*news: object) -> Series:
    projection = Projection()
    for item in news:
        projection.fold(item)  # type: ignore[arg-type]
    return scraped(exposed(projection).decode())


def exposed(*projections: Projection, is_connected: bool = True) -> bytes:
    """A scrape of jobs `tiny`, `tiny2` and so on."""
    jobs = [Source(f"{JOB}{n or ''}", p, is_connected) for n, p in enumerate(projections)]
    return exposition(jobs, Process(is_connected, len(jobs), RequestTallies(ROUTES)))


def value(series: Series, name: str, **labels: str) -> float:
    """Of the process where the metric is, else of the job `tiny`."""
    whole = labels if name in OF_PROCESS else {JOB_LABEL: JOB, **labels}
    return series[name, tuple(sorted(whole.items()))]


def test_metrics_of_a_story_add_up() -> None:
    """STORY: steps of 2 s and 3 s, three decisions, a transition of 1.5 s that was predicted to take 1 s."""
    series = of_projection(*STORY)
    plain = {
        "nereus_controller_up": 1,
        "nereus_jobs": 1,
        "nereus_job_up": 1,
        "nereus_news_total": 9,
        "nereus_plan_epoch": 1,
        "nereus_steps_total": 2,
        "nereus_samples_total": 8,
        "nereus_step_seconds_count": 2,
        "nereus_step_seconds_sum": 5,
        "nereus_step_reward": 0.75,
        "nereus_step_response_tokens": 12.5,
        "nereus_step_response_tokens_max": 20,
        "nereus_step_peak_bytes": 5 * MIB,
        "nereus_transitions_total": 1,
        "nereus_transition_seconds_count": 1,
        "nereus_transition_seconds_sum": 1.5,
        "nereus_transition_stall_seconds_sum": 2.25,
        "nereus_transition_setup_seconds_total": 0.5,
        "nereus_transition_moved_bytes_total": 4096,
        "nereus_transition_peak_bytes": 7 * MIB,
        "nereus_cost_transition_predicted_seconds_count": 1,
        "nereus_cost_transition_predicted_seconds_sum": 1.0,
        "nereus_cost_transition_measured_seconds_sum": 1.5,
        "nereus_late_seconds_total": 1,
        "nereus_declared_seconds_total": 8,
    }
    assert {name: value(series, name) for name in plain} == plain
    assert value(series, "nereus_build_info", version=__version__) == 1
    assert value(series, "nereus_devices", state="ready") == 2
    assert value(series, "nereus_devices", state="leaving") == 1
    degrees = [value(series, "nereus_placement_degree", model_stage="actor_training", axis=a) for a in ("tp", "pp", "dp")]
    assert degrees == [1, 1, 2]
    assert value(series, "nereus_placement_devices", model_stage="actor_training") == 2
    codes = {"infeasible_memory": 1, "rejected_payback": 1, "admitted": 1, "rejected_no_gain": 0}
    assert {code: value(series, "nereus_decisions_total", code=code) for code in codes} == codes
    assert value(series, "nereus_transition_primitives_total", primitive="Merge") == 2
    assert value(series, "nereus_transition_primitives_total", primitive="Destroy") == 0
    assert value(series, "nereus_stage_seconds_sum", model_stage="actor_generation") == 3
    assert value(series, "nereus_stage_seconds_sum", model_stage="weight_sync") == 0.75
    assert value(series, "nereus_stage_seconds_count", model_stage="actor_training") == 1


def test_all_label_sets_are_there_before_anything_happened() -> None:
    assert set(of_projection()) == set(of_projection(*STORY))


def test_what_is_not_known_yet_is_not_a_number() -> None:
    series = of_projection()
    assert math.isnan(value(series, "nereus_step_reward"))
    assert value(series, "nereus_steps_total") == 0


def test_every_metric_is_described_and_named_by_the_conventions() -> None:
    families = {f.name: f for f in text_string_to_metric_families(exposed(Projection(), is_connected=False).decode())}
    assert len(families) == len(METRICS)
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name]
        assert metric.name.startswith("nereus_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_info") == (metric.kind == "info")
        assert family.documentation == metric.meaning
        labels = {
            *metric.labels,
            *([JOB_LABEL] if metric in OF_JOBS else []),
            *(["le"] if metric.kind == "histogram" else []),
        }
        assert {label for sample in family.samples for label in sample.labels} == labels
        assert {sample.name for sample in family.samples} == set(metric.series())
        assert labels - {"le"} <= set(LABELS)
        assert metric.group in GROUPS


def test_each_job_has_its_own_series_and_the_process_has_one() -> None:
    told, silent = Projection(), Projection()
    for item in STORY:
        told.fold(item)
    series = scraped(exposed(told, silent).decode())
    assert series["nereus_steps_total", (("nereus_job", "tiny"),)] == 2
    assert series["nereus_steps_total", (("nereus_job", "tiny1"),)] == 0
    assert value(series, "nereus_jobs") == 2
    ours = {
        (name, tuple(p for p in labels if p[0] != JOB_LABEL)) for name, labels in series if (JOB_LABEL, "tiny") in labels
    }
    theirs = {
        (name, tuple(p for p in labels if p[0] != JOB_LABEL)) for name, labels in series if (JOB_LABEL, "tiny1") in labels
    }
    assert ours == theirs
    assert {name for name, labels in series if JOB_LABEL not in dict(labels)} == {
        *OF_PROCESS,
        "nereus_api_requests_total",
        *(f"nereus_api_request_seconds_{end}" for end in ("bucket", "count", "sum")),
    }


def test_process_without_a_job_tells_of_itself() -> None:
    series = scraped(exposed().decode())
    assert value(series, "nereus_jobs") == 0
    assert value(series, "nereus_controller_up") == 1


def test_committed_document_is_that_of_the_code() -> None:
    committed = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert committed == document(), "run: python -m nereus.metrics > docs/metrics.md"


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH: Debian's package prometheus has it")
def test_promtool_finds_nothing_to_say_of_a_scrape() -> None:
    projection = Projection()
    for item in STORY:
        projection.fold(item)
    assert PROMTOOL is not None
    ended = subprocess.run([PROMTOOL, "check", "metrics"], input=exposed(projection), capture_output=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
