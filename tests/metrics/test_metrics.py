"""What Prometheus scrapes, read by Prometheus' own parser."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nereus import __version__
from nereus.control.effects import News
from nereus.metrics.exposition import JOB_LABEL, Process, Source
from nereus.metrics.requests import RequestTallies
from nereus.metrics.table import GROUPS, LABELS, METRICS, OF_JOBS, document, exposition
from nereus.policy.admission import Code
from nereus.runtime.projection import Projection
from nereus.runtime.standing import Standing
from tests.api.news import MIB, STORY, canary, decision, described, pool, replanned, restored, started, step, transition
from tests.metrics.tools import found

PROMTOOL = found("promtool")
ROOT = Path(__file__).parents[2]
ROUTES = (("GET", "/metrics"),)
JOB = "tiny"

OF_CONTROLLER = {"nereus_controller_jobs", "nereus_controller_devices", "nereus_controller_failing_seconds"}
OF_PROCESS = {"nereus_build_info", "nereus_controller_up", "nereus_jobs", *OF_CONTROLLER}
STANDING = Standing(
    heads={JOB: "head/tiny"},
    jobs={"running": 1, "finished": 3},
    devices={"GPU": {"there": 8, "leaving": 2, "granted": 5, "asked_for": 12}},
    failing_s=2.5,
)
Series = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(text: str) -> Series:
    """Each sample by its name and labels; none is there twice."""
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def told(*news: News) -> Projection:
    projection = Projection()
    for item in news:
        projection.fold(item)
    return projection


def of_projection(*news: News) -> Series:
    return scraped(exposed(told(*news)).decode())


def exposed(*projections: Projection, is_connected: bool = True, standing: Standing | None = STANDING) -> bytes:
    """A scrape of jobs `tiny`, `tiny2` and so on, under a controller unless `standing` is None."""
    jobs = [Source(f"{JOB}{n or ''}", p, is_connected) for n, p in enumerate(projections)]
    return exposition(jobs, Process(is_connected, len(jobs), RequestTallies(ROUTES), standing))


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
        "nereus_news_total": 11,
        "nereus_job_parameters": 420_000,
        "nereus_job_planned_steps": 10,
        "nereus_devices_idle": 1,
        "nereus_devices_arrived_total": 3,
        "nereus_devices_departed_total": 0,
        "nereus_devices_lost_total": 0,
        "nereus_device_usable_bytes": 20 * MIB,
        "nereus_replan_seconds_count": 1,
        "nereus_replan_seconds_sum": 0.25,
        "nereus_replan_proposals_total": 3,
        "nereus_decision_gain_seconds": 0.5,
        "nereus_decision_cost_seconds": 2,
        "nereus_decision_payback_steps": 4,
        "nereus_decision_horizon_steps": 3,
        "nereus_admitted_gain_seconds_count": 1,
        "nereus_admitted_gain_seconds_sum": 0.5,
        "nereus_admitted_cost_seconds_sum": 2,
        "nereus_step_loss": 0.125,
        "nereus_step_kl": 0.25,
        "nereus_step_grad_norm": 1.5,
        "nereus_job_controller_losses_total": 0,
        "nereus_job_paused": 0,
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
        "nereus_cost_transition_error_seconds_sum": 0.5,
        "nereus_cost_step_predicted_seconds_count": 1,
        "nereus_cost_step_predicted_seconds_sum": 1.5,
        "nereus_cost_step_measured_seconds_sum": 3,
        "nereus_cost_step_error_seconds_sum": 1.5,
        "nereus_cost_prediction_age_steps": 1,
        "nereus_late_seconds_total": 1,
        "nereus_declared_seconds_total": 8,
    }
    assert {name: value(series, name) for name in plain} == plain
    assert value(series, "nereus_build_info", version=__version__) == 1
    assert value(series, "nereus_job_info", algorithm="grpo", mode="sync") == 1
    signals = {"pool": 1, "length": 1, "memory": 0, "operator": 0}
    assert {name: value(series, "nereus_replan_triggers_total", signal=name) for name in signals} == signals
    paths = {"one_node": 1024, "several_nodes": 3072}
    assert {p: value(series, "nereus_transition_operation_bytes_total", path=p) for p in paths} == paths
    assert [value(series, "nereus_device_peak_bytes", device=d) for d in "012"] == [3 * MIB, 5 * MIB, 0]
    assert [value(series, "nereus_device_model_stages", device=d) for d in "012"] == [2, 2, 0]
    assert value(series, "nereus_placement_micro_batch", model_stage="actor_training") == 1
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
    """But for those of devices, which are there while the device is, and of what the job is."""
    young, old = set(of_projection()), set(of_projection(*STORY))
    assert {name for name, _ in young ^ old} == {"nereus_device_peak_bytes", "nereus_device_model_stages", "nereus_job_info"}
    assert {name for name, _ in young - old} == {"nereus_job_info"}


def test_what_is_not_known_yet_is_not_a_number() -> None:
    series = of_projection()
    assert math.isnan(value(series, "nereus_step_reward"))
    assert value(series, "nereus_steps_total") == 0


def test_every_metric_is_described_and_named_by_the_conventions() -> None:
    exposition = exposed(told(*STORY), is_connected=False).decode()
    families = {f.name: f for f in text_string_to_metric_families(exposition)}
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
    series = scraped(exposed(told(*STORY, pool(5, {})), Projection()).decode())
    assert series["nereus_steps_total", (("nereus_job", "tiny"),)] == 2
    assert series["nereus_steps_total", (("nereus_job", "tiny1"),)] == 0
    assert value(series, "nereus_jobs") == 2
    ours = {
        (name, tuple(p for p in labels if p[0] != JOB_LABEL)) for name, labels in series if (JOB_LABEL, "tiny") in labels
    }
    theirs = {
        (name, tuple(p for p in labels if p[0] != JOB_LABEL)) for name, labels in series if (JOB_LABEL, "tiny1") in labels
    }
    assert ours - {("nereus_job_info", (("algorithm", "grpo"), ("mode", "sync")))} == theirs - {
        ("nereus_job_info", (("algorithm", "unknown"), ("mode", "unknown")))
    }
    assert {name for name, labels in series if JOB_LABEL not in dict(labels)} == {
        *OF_PROCESS,
        "nereus_api_requests_total",
        *(f"nereus_api_request_seconds_{end}" for end in ("bucket", "count", "sum")),
    }


def test_devices_that_come_go_and_die_are_counted_apart() -> None:
    """Device 1 goes on notice, 2 dies and comes again, 3 is taken over by another endpoint."""
    everyone = {0: "d0.0", 1: "d1.0", 2: "d2.0", 3: "d3.0"}
    series = of_projection(
        pool(0, everyone),
        pool(1, everyone, {1: 2}),
        pool(2, {0: "d0.0", 2: "d2.0", 3: "d3.0"}),
        pool(3, {0: "d0.0", 3: "d3.0"}),
        pool(4, {0: "d0.0", 2: "d2.1", 3: "d3.1"}),
    )
    assert value(series, "nereus_devices_arrived_total") == 4 + 2
    assert value(series, "nereus_devices_departed_total") == 1
    assert value(series, "nereus_devices_lost_total") == 2


def test_canary_tells_what_was_saved_and_in_how_many_steps_it_pays() -> None:
    series = of_projection(*STORY, canary(1, 0.25))
    assert value(series, "nereus_canary_predicted_seconds") == 0.5
    assert value(series, "nereus_canary_realised_seconds") == 0.25
    assert value(series, "nereus_canary_payback_steps") == 1.5 / 0.25
    assert value(series, "nereus_canaries_total", outcome="kept") == 1
    lost = of_projection(*STORY, canary(1, -0.25))
    assert math.isnan(value(lost, "nereus_canary_payback_steps"))
    assert value(lost, "nereus_canaries_total", outcome="returned") == 1


def test_prediction_of_steps_is_that_of_the_plan_in_force() -> None:
    """2.0 s until the transition, 1.5 s after it, nothing after a scripted one; steps of 2 s, 3 s and 2 s."""
    news = [
        started(),
        step(1),
        replanned(1, "pool", current_s=2.0),
        step(2),
        decision(Code.ADMITTED),
        transition(1),
        step(3, step_s=3.0),
        transition(2),
        step(4),
    ]
    series = of_projection(*news)
    assert value(series, "nereus_cost_step_predicted_seconds_count") == 2
    assert value(series, "nereus_cost_step_predicted_seconds_sum") == 2.0 + 1.5
    assert value(series, "nereus_cost_step_error_seconds_sum") == 0.0 + 1.5
    assert value(series, "nereus_cost_prediction_age_steps") == 3


def test_dry_run_counts_as_no_decision_and_its_plan_is_not_expected_to_come() -> None:
    """Steps of 2 s on a plan of 2 s: what a dry run admits would take 1.5 s, and leads nowhere."""
    dry = replace(decision(Code.ADMITTED), is_dry_run=True)
    news = [started(), replanned(1, "pool"), step(2), dry, transition(1), step(3)]
    series = of_projection(*news)
    assert value(series, "nereus_decisions_total", code="admitted") == 0
    assert math.isnan(value(series, "nereus_decision_gain_seconds"))
    assert value(series, "nereus_admitted_gain_seconds_count") == 0
    assert value(series, "nereus_cost_step_predicted_seconds_count") == 1
    assert value(series, "nereus_cost_step_predicted_seconds_sum") == 2.0


def test_return_to_a_checkpoint_ages_no_prediction() -> None:
    """Steps 3 to 5 are lost; the plan of the restored state was admitted at 1.5 s a step."""
    news = [started(), replanned(4, "pool"), step(5), decision(Code.ADMITTED_URGENT), restored(2, repeated_steps=3), step(3)]
    series = of_projection(*news)
    assert value(series, "nereus_cost_prediction_age_steps") == 1
    assert value(series, "nereus_cost_step_predicted_seconds_sum") == 2.0 + 1.5


@pytest.mark.parametrize("num_devices", [1, 8, 64])
def test_number_of_series_grows_with_devices_only(num_devices: int) -> None:
    """Two for each device that is there; whatever happens adds none."""
    ready = {device: f"d{device}.0" for device in range(num_devices)}
    young = of_projection(described(), pool(0, ready))
    busy = [decision(code, cycle=n, command=f"c{n}") for n, code in enumerate(Code)] * 20
    old = of_projection(described(), pool(0, ready), started(), *busy, *(step(n) for n in range(1, 50)), transition(1))
    assert len(old) == len(young) == len(of_projection(described())) + 2 * num_devices


def test_process_without_a_job_tells_of_itself() -> None:
    series = scraped(exposed().decode())
    assert value(series, "nereus_jobs") == 0
    assert value(series, "nereus_controller_up") == 1


def test_controller_tells_its_jobs_and_devices_by_state_and_how_long_it_has_failed() -> None:
    series = scraped(exposed().decode())
    jobs = {"queued": 0, "starting": 0, "running": 1, "finished": 3, "failed": 0, "cancelled": 0}
    assert {state: value(series, "nereus_controller_jobs", state=state) for state in jobs} == jobs
    devices = {"there": 8, "leaving": 2, "granted": 5, "asked_for": 12}
    told = {state: value(series, "nereus_controller_devices", resource="GPU", state=state) for state in devices}
    assert told == devices
    assert value(series, "nereus_controller_failing_seconds") == 2.5
    assert len([name for name, _ in series if name in OF_CONTROLLER]) == len(jobs) + len(devices) + 1


def test_single_run_tells_nothing_of_a_controller_of_several_jobs() -> None:
    series = scraped(exposed(told(*STORY), standing=None).decode())
    assert OF_CONTROLLER & {name for name, _ in series} == set()


def test_committed_document_is_that_of_the_code() -> None:
    committed = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert committed == document(), "run: python -m nereus.metrics > docs/metrics.md"


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH: Debian's package prometheus has it")
def test_promtool_finds_nothing_to_say_of_a_scrape() -> None:
    assert PROMTOOL is not None
    ended = subprocess.run([PROMTOOL, "check", "metrics"], input=exposed(told(*STORY)), capture_output=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
