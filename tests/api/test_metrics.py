"""What Prometheus scrapes, read by Prometheus' own parser."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from nereus import __version__
from nereus.api.metrics import METRICS, exposition
from nereus.runtime.projection import Projection
from tests.api.news import MIB, STORY
from tests.api.served import Api

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
    return scraped(exposition(projection, is_connected=True).decode())


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


def test_metrics_of_a_story_add_up() -> None:
    """STORY: steps of 2 s and 3 s, three decisions, a transition of 1.5 s that was predicted to take 1 s."""
    series = of_projection(*STORY)
    plain = {
        "nereus_controller_up": 1,
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
    families = {f.name: f for f in text_string_to_metric_families(exposition(Projection(), is_connected=False).decode())}
    assert len(families) == len(METRICS)
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name]
        assert metric.name.startswith("nereus_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert family.documentation == metric.meaning
        assert {label for sample in family.samples for label in sample.labels} == set(metric.labels)


def test_scrape_over_http_parses_and_says_whether_the_controller_answers(api: Api) -> None:
    reply = api.get("/metrics")
    assert reply.status == 200
    assert reply.headers.get_content_type() == "text/plain"
    assert value(scraped(reply.text), "nereus_controller_up") == 1
    assert value(scraped(reply.text), "nereus_steps_total") == 2
