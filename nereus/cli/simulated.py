"""What a simulation shows on a terminal: one run in full, several side by side.

Comparison.as_dict() -> tables and lines; every figure is one of the JSON's
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from nereus.cli.tables import show_table
from nereus.sim.charts import time_unit
from nereus.sim.inputs import Inputs
from nereus.sim.outcome import Cause

SHOWN_DECISIONS = 10
"""The last ones, line by line: what a terminal shows at once; the JSON and the report have all."""


def show(console: Console, inputs: Inputs, data: Mapping[str, Any]) -> None:
    """Print what came of a simulation."""
    _say(console, _sentences(inputs, data))
    outcomes = data["outcomes"]
    if len(outcomes) > 1:
        _show_comparison(console, outcomes)
        return
    (one,) = outcomes
    _show_summary(console, one)
    _show_time(console, one)
    _show_transitions(console, one["transitions"])
    _show_decisions(console, one["decisions"])


def _say(console: Console, lines: Iterator[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _sentences(inputs: Inputs, data: Mapping[str, Any]) -> Iterator[str]:
    unit, size = time_unit(data["trace_seconds"])
    counts = [count for _, count in data["pool"]]
    pool = f"{min(counts)} to {max(counts)} of {data['devices']} devices"
    yield f"{data['job']}: {pool} over {data['trace_seconds'] / size:.3g} {unit}, world {data['seed']}"
    most = max(count for _, count in inputs.trace.points)
    if most > data["devices"]:
        yield f"The trace has up to {most} devices; the outline's {data['devices']} are the most that are there."
    if not inputs.lengths:
        yield f"Without --lengths responses have a mean of {inputs.outline.workload.response_tokens} tokens throughout."


def _show_summary(console: Console, one: Mapping[str, Any]) -> None:
    headings = ("policy", "tokens/s", "steps", "response tokens", "seconds", "transitions", "cost")
    row = (
        one["policy"],
        f"{one['throughput_tokens_per_second']:,.1f}",
        f"{one['steps']:,}",
        f"{one['response_tokens']:,.0f}",
        f"{one['duration_seconds']:,.1f}",
        f"{len(one['transitions'])}",
        _money(one["cost"]),
    )
    show_table(console, "", headings, [row])


def _show_time(console: Console, one: Mapping[str, Any]) -> None:
    total = sum(one["spent_seconds"].values())
    spent = [(cause, seconds) for cause, seconds in one["spent_seconds"].items() if seconds]
    rows = [(cause.replace("_", " "), f"{seconds:,.1f}", f"{seconds / total:.1%}") for cause, seconds in spent]
    show_table(console, "where the time went", ("", "seconds", "share"), rows)


def _show_transitions(console: Console, transitions: Sequence[Mapping[str, Any]]) -> None:
    if not transitions:
        _say(console, iter(["no transition"]))
        return
    rows = [
        (
            f"{one['step']}",
            one["trigger"],
            ", ".join(f"{count} {name}" for name, count in one["primitives"].items()) or "none",
            "-" if one["predicted_seconds"] is None else f"{one['predicted_seconds']:.2f}",
            f"{one['seconds']:.2f}",
        )
        for one in transitions
    ]
    headings = ("after step", "why", "primitives", "predicted s", "actual s")
    show_table(console, _counted(rows, "transition"), headings, rows)


def _show_decisions(console: Console, decisions: Sequence[Mapping[str, Any]]) -> None:
    if not decisions:
        _say(console, iter(["no decision"]))
        return
    counts = Counter(one["code"] for one in decisions)
    show_table(
        console, _counted(decisions, "decision"), ("code", "decisions"), [(c, f"{n}") for c, n in counts.most_common()]
    )
    last = decisions[-SHOWN_DECISIONS:]
    if len(last) < len(decisions):
        _say(console, iter([f"the last {len(last)}:"]))
    _say(console, map(_decision_line, last))


def _counted(rows: Sequence[object], noun: str) -> str:
    return f"{len(rows)} {noun}{'' if len(rows) == 1 else 's'}"


def _decision_line(one: Mapping[str, Any]) -> str:
    target = "; ".join(f"{name} -> {plan}" for name, plan in one["target"].items())
    return f"{one['code']} after step {one['step']} [{'; '.join(one['triggers'])}]: {target}: {one['reason']}"


def _show_comparison(console: Console, outcomes: Sequence[Mapping[str, Any]]) -> None:
    """Lost time by cause, of the causes that there are."""
    lost = [c for c in Cause if c is not Cause.STEPS and any(one["spent_seconds"][c] for one in outcomes)]
    headings = (
        "policy",
        "tokens/s",
        "of first",
        "steps",
        *(f"{c.replace('_', ' ')} s" for c in lost),
        "transitions",
        "cost",
    )
    rows = [
        (
            one["policy"],
            f"{one['throughput_tokens_per_second']:,.1f}",
            "-" if one["of_first"] is None else f"{one['of_first']:.3f}",
            f"{one['steps']:,}",
            *(f"{one['spent_seconds'][c]:,.1f}" for c in lost),
            f"{len(one['transitions'])}",
            _money(one["cost"]),
        )
        for one in outcomes
    ]
    show_table(console, f"{len(rows)} policies", headings, rows)


def _money(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.2f}"
