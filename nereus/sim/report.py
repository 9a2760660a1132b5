"""A simulation to look at: one HTML file, with no script and nothing from elsewhere.

    Comparison.as_dict() -> charts (throughput, pool, lengths, Gantt), tables (plans, transitions, decisions)

It is made from what `--json` prints and from nothing else; a figure is in a <data> element, whose value is that of the JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from nereus.sim.charts import Bar, Series, bar_chart, gantt_chart, line_chart, step_chart, time_unit
from nereus.sim.outcome import Cause
from nereus.sim.stylesheet import NUM_COLOURS, STYLESHEET

MOST_PLANS = 12
"""Lanes of a Gantt chart, those in which most time was spent; a run that changes often has hundreds of plans."""

MOST_ROWS = 500
"""Of a table; the JSON has the others. Ten thousand rows make a page that no browser likes to scroll."""

ON_PLAN = (Cause.STEPS, Cause.REDONE, Cause.OUT_OF_MEMORY)
"""Causes whose spans name a plan."""


def report(data: Mapping[str, Any]) -> str:
    """The page for what Comparison.as_dict() gave."""
    title = f"{data['job']}: simulated"
    body = "".join([*_head(data), *(part for at in range(len(data["outcomes"])) for part in _run(data, at))])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLESHEET}</style></head>\n<body>{body}</body></html>\n"
    )


def figure(value: float | None, form: str = ",.1f") -> str:
    """A number for a person, with its exact value beside it; a dash for none."""
    return "-" if value is None else f'<data value="{value!r}">{format(value, form)}</data>'


def _head(data: Mapping[str, Any]) -> Iterator[str]:
    """What was simulated, and how the policies compare."""
    outcomes, end_s = data["outcomes"], _end(data)
    unit, size = time_unit(data["trace_seconds"])
    files = ", ".join(f"{name} {escape(file)}" for name, file in data["files"].items() if file)
    yield f"<h1>{escape(data['job'])}</h1><p class='faint'>Simulated in virtual time: up to {data['devices']} devices, "
    yield f"{data['trace_seconds'] / size:,.3g} {unit} of trace, world {data['seed']}, gamma {data['gamma']:g}. {files}</p>"
    yield "<h2>Throughput by policy</h2><p>Response tokens per second, everything counted.</p>"
    bars = []
    for at, one in enumerate(outcomes):
        ratio = "" if one["of_first"] is None or not at else f", {one['of_first']:.3f} of {outcomes[0]['policy']}"
        bars.append((one["policy"], _colour(at), one["throughput_tokens_per_second"], f"{_throughput(one):,.1f}{ratio}"))
    yield bar_chart("Throughput by policy", bars)
    yield _comparison(outcomes)
    yield "<h2>Devices that are there</h2>" + step_chart("Devices over time", _until(data["pool"], end_s), end_s)
    yield "<h2>Mean response, in tokens</h2>"
    if len(outcomes) > 1:
        yield _keys([(one["policy"], _colour(at)) for at, one in enumerate(outcomes)])
    series = [Series(o["policy"], _colour(at), [(t, m) for t, _, m in o["lengths"]]) for at, o in enumerate(outcomes)]
    yield line_chart("Mean response over time", series, end_s)


def _comparison(outcomes: Sequence[Mapping[str, Any]]) -> str:
    lost = [cause for cause in Cause if any(one["spent_seconds"][cause] for one in outcomes)]
    names = [f"{cause.replace('_', ' ')}, s" for cause in lost]
    headings = ["policy", "tokens/s", "of the first", "steps", *names, "transitions", "cost"]
    rows = [
        [
            escape(one["policy"]),
            figure(_throughput(one)),
            figure(one["of_first"], ".3f"),
            figure(one["steps"], ",d"),
            *(figure(one["spent_seconds"][cause]) for cause in lost),
            figure(len(one["transitions"]), "d"),
            figure(one["cost"], ",.2f"),
        ]
        for one in outcomes
    ]
    return table(headings, rows, numbers=range(1, len(headings)))


def _run(data: Mapping[str, Any], at: int) -> Iterator[str]:
    """One policy's run."""
    one = data["outcomes"][at]
    plans = _plans(one["spans"])
    shown = {what: f"plan {number}" for number, what in enumerate(list(plans)[:MOST_PLANS], 1)}
    yield f"<h2>{escape(one['policy'])}</h2>"
    yield _keys([(cause.replace("_", " "), cause) for cause in Cause if one["spent_seconds"][cause]])
    yield gantt_chart(f"Where the time of {one['policy']} went", _lanes(one["spans"], shown), _end(data))
    rows = [[name, escape(what), figure(plans[what])] for what, name in shown.items()]
    yield table(["", "plan", "seconds of steps"], rows, numbers=[2], left_off=len(plans) - len(shown))
    if one["transitions"]:
        yield f"<h3>Transitions: {figure(len(one['transitions']), 'd')}</h3>{_transitions(one['transitions'])}"
    if one["decisions"]:
        yield f"<h3>Decisions: {figure(len(one['decisions']), 'd')}</h3>{_decisions(one['decisions'])}"


def _plans(spans: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Seconds of steps on each plan, that with the most first."""
    found: Counter[str] = Counter()
    for begin_s, end_s, cause, what in spans:
        if cause == Cause.STEPS:
            found[what] += end_s - begin_s
    return dict(found.most_common())


def _lanes(spans: Sequence[Sequence[Any]], shown: Mapping[str, str]) -> list[tuple[str, list[Bar]]]:
    """A lane for each plan, one for all others, one for time without a plan."""
    lanes: dict[str, list[Bar]] = {name: [] for name in (*shown.values(), "other plans", "no step")}
    for begin_s, end_s, cause, what in spans:
        lane = shown.get(what, "other plans") if cause in ON_PLAN else "no step"
        title = f"{cause.replace('_', ' ')}, {begin_s:,.1f} s to {end_s:,.1f} s: {what}"
        lanes[lane].append(Bar(begin_s, end_s, cause, title))
    return [(name, bars) for name, bars in lanes.items() if bars]


def _transitions(transitions: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            figure(one["step"], "d"),
            escape(one["trigger"]),
            escape(", ".join(f"{count} {name}" for name, count in one["primitives"].items()) or "no primitive"),
            figure(one["predicted_seconds"], ",.2f"),
            figure(one["seconds"], ",.2f"),
            figure(one["moved_bytes"] / 1e9, ",.2f"),
        ]
        for one in transitions[:MOST_ROWS]
    ]
    headings = ["after step", "why", "primitives", "predicted, s", "actual, s", "moved, GB"]
    return table(headings, rows, numbers=[0, 3, 4, 5], left_off=len(transitions) - len(rows))


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(one["code"] for one in decisions)
    codes = table(["code", "decisions"], [[escape(code), figure(n, "d")] for code, n in counts.most_common()], numbers=[1])
    rows = [
        [
            figure(one["step"], "d"),
            escape(one["code"]),
            escape("; ".join(one["triggers"])),
            escape("; ".join(f"{name} -> {plan}" for name, plan in one["target"].items())),
            escape(one["reason"]),
        ]
        for one in decisions[:MOST_ROWS]
    ]
    headings = ["after step", "code", "why", "candidate", "reason"]
    listed = table(headings, rows, numbers=[0], left_off=len(decisions) - len(rows))
    return f"{codes}<details><summary>Every decision</summary>{listed}</details>"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int], left_off: int = 0) -> str:
    """A table of cells that are HTML already; `numbers` are columns whose cells are figures."""
    kind = [' class="number"' if at in numbers else "" for at in range(len(headings))]
    head = "".join(f"<th{cls}>{escape(name)}</th>" for name, cls in zip(headings, kind, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{cls}>{cell}</td>' for cell, cls in zip(row, kind, strict=True))}</tr>" for row in rows
    )
    more = f"<p class='faint'>and {left_off:,} more</p>" if left_off > 0 else ""
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"


def _keys(names: Sequence[tuple[str, str]]) -> str:
    keys = [f'<span class="key {colour}">{escape(name)}</span>' for name, colour in names]
    return f"<p>{''.join(keys)}</p>"


def _colour(at: int) -> str:
    return f"p{at % NUM_COLOURS}"


def _throughput(one: Mapping[str, Any]) -> float:
    return float(one["throughput_tokens_per_second"])


def _end(data: Mapping[str, Any]) -> float:
    """Where the charts end: with the longest run."""
    return max(float(one["duration_seconds"]) for one in data["outcomes"])


def _until(points: Sequence[Sequence[float]], end_s: float) -> list[tuple[float, float]]:
    """The points that a chart up to a time has room for."""
    return [(time_s, amount) for time_s, amount in points if time_s <= end_s]
