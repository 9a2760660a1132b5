"""The dashboards: what is committed is what the code makes, every query parses, and every metric in it is there."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from nereus.metrics.exposition import JOB_LABEL
from nereus.metrics.table import METRICS, OF_JOBS

pytest.importorskip("grafana_foundation_sdk", reason="the dashboards are made with grafana-foundation-sdk (extra dev)")
promql_parser = pytest.importorskip("promql_parser", reason="queries are parsed by promql-parser (extra dev)")

from deploy.grafana.build import BOARDS, COLUMNS, FOLDER, document, path  # noqa: E402
from tests.metrics.queries import filled, selectors  # noqa: E402

SERIES = {name: metric for metric in METRICS for name in metric.series()}
NAMES = [board.uid for board in BOARDS]


def committed(uid: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{uid}.json").read_text(encoding="utf-8"))
    return found


def panels(uid: str) -> list[dict[str, Any]]:
    return [panel for panel in committed(uid)["panels"] if panel["type"] != "row"]


def queries(uid: str) -> list[str]:
    return [target["expr"] for panel in panels(uid) for target in panel["targets"]]


@pytest.mark.parametrize("board", BOARDS, ids=NAMES)
def test_committed_dashboard_is_what_the_code_makes(board: Any) -> None:
    assert path(board).read_text(encoding="utf-8") == document(board), "run: python -m deploy.grafana"


def test_dashboards_are_the_five_and_their_names_are_unique() -> None:
    wanted = {"nereus-overview", "nereus-planner", "nereus-devices", "nereus-cost-model", "nereus-api"}
    assert {file.stem for file in FOLDER.glob("*.json")} == wanted
    found = [committed(uid) for uid in sorted(wanted)]
    assert {board["uid"] for board in found} == wanted
    assert len({board["title"] for board in found}) == 5
    assert all(board["schemaVersion"] >= 39 and board["description"] for board in found)


@pytest.mark.parametrize("uid", NAMES)
def test_panel_has_title_description_unit_and_the_chosen_data_source(uid: str) -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(uid):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == source
        assert panel["targets"]
        assert all(target["datasource"] == source and target["legendFormat"] for target in panel["targets"])
    ids = [panel["id"] for panel in committed(uid)["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("uid", NAMES)
def test_no_panel_lies_on_another_or_beyond_the_page(uid: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in committed(uid)["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]


@pytest.mark.parametrize("uid", NAMES)
def test_variables_are_the_data_source_and_the_jobs(uid: str) -> None:
    source, job = committed(uid)["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (job["name"], job["type"], job["multi"], job["includeAll"]) == (JOB_LABEL, "query", True, True)
    assert job["datasource"]["uid"] == "${datasource}"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(committed(uid)["panels"])))
    assert used <= {"datasource", JOB_LABEL, "__rate_interval", "__range"}


@pytest.mark.parametrize("uid", NAMES)
def test_query_parses_and_asks_for_metrics_and_labels_that_there_are(uid: str) -> None:
    for query in queries(uid):
        promql_parser.parse(filled(query))
        found = selectors(query)
        assert found, query
        for name, labels in found:
            metric = SERIES[name]
            of_job = metric in OF_JOBS
            assert set(labels) <= {*metric.labels, *([JOB_LABEL] if of_job else [])}, query
            assert (JOB_LABEL in labels) == of_job, f"{query}: a metric of jobs is asked for the chosen ones"


@pytest.mark.parametrize("uid", NAMES)
def test_legend_has_only_labels_that_the_series_have(uid: str) -> None:
    known = {JOB_LABEL, *(label for metric in METRICS for label in metric.labels)}
    for panel in panels(uid):
        for target in panel["targets"]:
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known


def test_counters_are_shown_by_how_they_grow_or_as_one_figure() -> None:
    """A counter over time is a ramp that says nothing; as a figure it is a total."""
    ramps = {"nereus_transitions_interrupted_total", "nereus_checkpoint_repeated_steps_total"}
    for uid in NAMES:
        for panel in panels(uid):
            if panel["type"] != "timeseries":
                continue
            for target in panel["targets"]:
                names = {
                    name for name, _ in selectors(target["expr"]) if SERIES[name].kind in ("counter", "summary", "histogram")
                }
                grows = any(f"{function}(" in target["expr"] for function in ("rate", "increase"))
                assert grows or names <= ramps, target["expr"]


def test_every_metric_of_a_job_is_on_a_dashboard() -> None:
    """But for a total that is the count of a summary beside it."""
    shown = {name for uid in NAMES for query in queries(uid) for name, _ in selectors(query)}
    missing = {metric.name for metric in METRICS if not shown & set(metric.series())}
    assert missing == set()
