"""The report as a browser would read it: its figures are those of the JSON, nothing is fetched, nothing is run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from nereus.sim.adaptive import Adaptive
from nereus.sim.charts import LEAST_WIDTH, LEFT, RIGHT, WIDTH, Bar, gantt_chart, ticks, time_unit
from nereus.sim.comparison import Comparison
from nereus.sim.outcome import Cause
from nereus.sim.report import MOST_PLANS, MOST_ROWS, report
from nereus.sim.stylesheet import STYLESHEET
from tests.sim.tiny import inputs

DRAWN = WIDTH - LEFT - RIGHT
VOID = {"meta"}


class Page(HTMLParser):
    """Tables by their headings, bars of the charts, and every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.values: list[list[list[float]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
            self.values.append([])
        elif tag == "tr":
            self.tables[-1].append([])
            self.values[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "data" and "td" in self._open:
            self.values[-1][-1].append(float(dict(attrs)["value"] or "nan"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data

    def rows(self, heading: str) -> list[list[float]]:
        """The figures of the table with this heading, row by row."""
        (found,) = (at for at, table in enumerate(self.tables) if heading in table[0])
        return self.values[found][1:]

    def bars(self, colour: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == "rect" and attrs["class"] == f"fill {colour}"]


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    """A run of the tiny job, and one that keeps its plan."""
    eager, idle = inputs().scenario(), inputs(gamma=0.0).scenario()
    outcomes = [Adaptive(eager).run(), Adaptive(idle, "keeps").run()]
    return Comparison(scenario=eager, files={"outline": "o.yaml", "lengths": None}, outcomes=outcomes).as_dict()


@pytest.fixture(scope="module")
def page(data: dict[str, Any]) -> Page:
    return Page(report(data))


def test_comparison_has_the_figures_of_the_json(page: Page, data: dict[str, Any]) -> None:
    first = data["outcomes"][0]["throughput_tokens_per_second"]
    lost = [cause for cause in Cause if any(one["spent_seconds"][cause] for one in data["outcomes"])]
    assert page.rows("tokens/s") == [
        [
            one["throughput_tokens_per_second"],
            one["throughput_tokens_per_second"] / first,
            one["steps"],
            *(one["spent_seconds"][cause] for cause in lost),
            len(one["transitions"]),
            one["cost"],
        ]
        for one in data["outcomes"]
    ]


def test_transitions_and_decisions_have_the_figures_of_the_json(page: Page, data: dict[str, Any]) -> None:
    (moved, *more), decided = data["outcomes"][0]["transitions"], data["outcomes"][1]["decisions"]
    assert not more
    assert page.rows("primitives") == [
        [moved["step"], moved["predicted_seconds"], moved["seconds"], pytest.approx(moved["moved_bytes"] / 1e9)]
    ]
    codes = [one["code"] for one in decided]
    table = next(t for t in reversed(page.tables) if t[0] == ["code", "decisions"])
    assert {code: int(count) for code, count in table[1:]} == {code: codes.count(code) for code in codes}
    listed = next(t for t in reversed(page.tables) if t[0][-1] == "reason")
    assert [(int(row[0]), row[1], row[4]) for row in listed[1:]] == [(d["step"], d["code"], d["reason"]) for d in decided]


def test_bars_of_the_gantt_are_as_long_as_their_spans(page: Page, data: dict[str, Any]) -> None:
    for cause in (Cause.STEPS, Cause.TRANSITION):
        spans = [span for one in data["outcomes"] for span in one["spans"] if span[2] == cause]
        drawn = sorted((float(bar["x"] or 0), float(bar["width"] or 0)) for bar in page.bars(cause))
        wanted = sorted(
            (LEFT + DRAWN * begin_s / 300.0, max(DRAWN * (end_s - begin_s) / 300.0, LEAST_WIDTH))
            for begin_s, end_s, _, _ in spans
        )
        assert drawn == [pytest.approx(bar, abs=0.01) for bar in wanted]
        assert drawn


def test_bars_of_throughput_are_as_long_as_the_ratio(page: Page, data: dict[str, Any]) -> None:
    (first,), (second,) = page.bars("p0"), page.bars("p1")
    ratio = data["outcomes"][1]["of_first"]
    assert float(second["width"] or 0) / float(first["width"] or 1) == pytest.approx(ratio, abs=1e-3)


def test_pool_is_drawn_where_the_trace_has_it(page: Page, data: dict[str, Any]) -> None:
    """Two of four devices are half as high, and the step is where they arrive."""
    assert data["pool"] == [[0.0, 2], [60.0, 4]]
    (area,) = (attrs["d"] for tag, attrs in page.tags if attrs.get("class") == "area")
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", area or "")]
    base, low, high = points[0][1], points[1][1], points[3][1]
    assert base - low == pytest.approx((base - high) / 2, abs=0.1)
    assert points[3][0] == pytest.approx(LEFT + DRAWN * 60.0 / 300.0, abs=0.1)


def test_page_is_one_file_that_runs_nothing_and_suits_light_and_dark(page: Page) -> None:
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    named = {name for _, attrs in page.tags for name in attrs}
    assert not {"src", "href", "xlink:href", "style"} & named
    assert not [name for name in named if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?:", STYLESHEET)
    assert "prefers-color-scheme: dark" in STYLESHEET


def test_every_class_has_a_colour_or_a_style(page: Page) -> None:
    used = {name for _, attrs in page.tags for name in (attrs.get("class") or "").split()}
    assert {name for name in used if f".{name}" not in STYLESHEET} == set()
    assert all(f".{cause} " in STYLESHEET for cause in Cause)


def test_text_of_others_is_escaped(data: dict[str, Any]) -> None:
    """The names of jobs, files and plans come from files that anybody may have written."""
    evil = '"><script>alert(1)</script>&'
    first = data["outcomes"][0]
    decisions = [{**first["decisions"][0], "reason": evil, "triggers": [evil], "target": {evil: evil}, "code": evil}]
    transitions = [{**first["transitions"][0], "trigger": evil, "primitives": {evil: 1}}]
    spans = [[0.0, 300.0, "steps", evil]]
    run = {**first, "policy": evil, "decisions": decisions, "transitions": transitions, "spans": spans}
    page = Page(report({**data, "job": evil, "files": {"outline": evil}, "outcomes": [run]}))
    assert "script" not in {tag for tag, _ in page.tags}
    assert sum(evil in words for words in ["".join(page.words), *(c for t in page.tables for r in t for c in r)]) >= 8


def test_long_runs_make_a_page_of_bounded_size(data: dict[str, Any]) -> None:
    """Ten thousand plans, one a second: lanes, bars and rows are bounded, and what is left off is said."""
    first = data["outcomes"][0]
    spans = [[float(at), at + 1.0, "steps", f"plan of second {at % 5000}"] for at in range(10_000)]
    run = {**first, "spans": spans, "decisions": first["decisions"][:1] * 10_000, "duration_seconds": 10_000.0}
    text = report({**data, "outcomes": [run]})
    page = Page(text)
    assert len(page.bars("steps")) <= MOST_PLANS * 2 + 2 * DRAWN
    assert len(text) < 2_000_000
    words = "".join(page.words)
    assert f"and {10_000 - MOST_ROWS:,} more" in words
    assert f"and {5000 - MOST_PLANS:,} more" in words


def test_bars_that_cannot_be_told_apart_are_one_and_long_ones_stay_apart() -> None:
    near = [Bar(at * 0.1, at * 0.1 + 0.05, "steps", "") for at in range(100)]
    apart = [Bar(1000.0, 4000.0, "steps", ""), Bar(4000.1, 9000.0, "steps", "")]
    drawn = gantt_chart("", [("", near), ("", apart)], 10_000.0)
    assert drawn.count("<rect") < 100 / 2 + 2
    assert gantt_chart("", [("", apart)], 10_000.0).count("<rect") == 2


@pytest.mark.parametrize("most", [0.003, 0.7, 1, 3, 8, 99, 123456])
def test_marks_are_few_round_and_within(most: float) -> None:
    found = ticks(most)
    assert 3 <= len(found) <= 7
    assert found[0] == 0
    assert 0.5 * most <= found[-1] <= most * (1 + 1e-9)
    assert float(f"{found[1]:.0e}") == pytest.approx(found[1])


@pytest.mark.parametrize(("seconds", "unit"), [(10, "s"), (299, "s"), (1200, "min"), (4 * 3600, "h"), (9 * 86400, "d")])
def test_times_are_in_the_unit_that_suits(seconds: float, unit: str) -> None:
    assert time_unit(seconds)[0] == unit
