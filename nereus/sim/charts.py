"""Charts of a simulation as inline SVG: no script, no font, no file from elsewhere.

    values -> Frame (seconds and amounts to places, axes) -> text of an <svg>

Colours are classes, so that the page's style sheet decides them, in light and in dark. All text is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from typing import NamedTuple

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1000, 90, 30, 10, 28
"""Of a chart, in its own units: the whole, and the margins around what is drawn."""

TICKS = 6
"""Marks of an axis, at most one more: labels that are nearer touch."""

LANE = 22
"""Height of a lane of the Gantt chart."""

LEAST_WIDTH = 0.8
"""Of a bar, or what is short would not be seen; and the gap over which bars of one lane and colour are drawn as one."""

TIME_UNITS = (("d", 86400.0, 3 * 86400.0), ("h", 3600.0, 3 * 3600.0), ("min", 60.0, 300.0), ("s", 1.0, 0.0))
"""Name, seconds, and from which duration on it is used."""


class Bar(NamedTuple):
    """A stretch of time in a lane."""

    begin_s: float
    end_s: float
    colour: str
    """A class of the style sheet."""
    title: str


class Series(NamedTuple):
    """A line with a name."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Frame:
    """Places on a chart of amounts over time."""

    most_s: float
    most: float
    height: int = 200

    def x(self, time_s: float) -> float:
        """Where a time is."""
        return LEFT + (WIDTH - LEFT - RIGHT) * time_s / (self.most_s or 1.0)

    def y(self, amount: float) -> float:
        """Where an amount is; up is more."""
        floor_y = self.height - BOTTOM
        return floor_y - (floor_y - TOP) * amount / (self.most or 1.0)

    def svg(self, title: str, parts: Iterable[str]) -> str:
        """The whole chart; `title` is what is read out."""
        inner = "".join(parts)
        box = f'viewBox="0 0 {WIDTH} {self.height}"'
        return f'<svg {box} role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>{inner}</svg>'

    def time_axis(self) -> str:
        """Marks below, in the unit that suits."""
        unit, size = time_unit(self.most_s)
        y = self.height - BOTTOM
        marks = [f'<line class="axis" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>']
        for tick in ticks(self.most_s / size):
            x = self.x(tick * size)
            marks.append(f'<line class="axis" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 4}"/>')
            marks.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{tick:g} {unit}</text>')
        return "".join(marks)

    def amount_axis(self) -> str:
        """Marks at the left, with a line across each."""
        marks = []
        for tick in ticks(self.most):
            y = self.y(tick)
            marks.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
            marks.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>')
        return "".join(marks)


def ticks(most: float) -> list[float]:
    """0 and round numbers up to the largest value."""
    if most <= 0:
        return [0.0]
    rough = most / TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
    return [at * step for at in range(int(most / step + 1e-9) + 1)]


def time_unit(duration_s: float) -> tuple[str, float]:
    """Name and seconds of the unit in which a duration is a number that people read."""
    return next((name, size) for name, size, least in TIME_UNITS if duration_s >= least)


def step_chart(title: str, points: Sequence[tuple[float, float]], end_s: float) -> str:
    """An amount that holds until its next point, as an area."""
    frame = Frame(end_s, max(amount for _, amount in points))
    path = [f"M{frame.x(points[0][0]):.1f} {frame.y(0):.1f}"]
    for (time_s, amount), until_s in zip(points, [*(time for time, _ in points[1:]), end_s], strict=True):
        path.append(f"L{frame.x(time_s):.1f} {frame.y(amount):.1f}L{frame.x(until_s):.1f} {frame.y(amount):.1f}")
    path.append(f"L{frame.x(end_s):.1f} {frame.y(0):.1f}Z")
    return frame.svg(title, [frame.amount_axis(), f'<path class="area" d="{"".join(path)}"/>', frame.time_axis()])


def line_chart(title: str, series: Sequence[Series], end_s: float) -> str:
    """Lines over time, each with its name on it."""
    frame = Frame(end_s, max((amount for one in series for _, amount in one.points), default=0.0))
    lines = []
    for one in series:
        path = "L".join(f"{frame.x(time_s):.1f} {frame.y(amount):.1f}" for time_s, amount in one.points)
        if path:
            lines.append(f'<path class="line {one.colour}" d="M{path}"><title>{escape(one.name)}</title></path>')
    return frame.svg(title, [frame.amount_axis(), *lines, frame.time_axis()])


def bar_chart(title: str, bars: Sequence[tuple[str, str, float, str]]) -> str:
    """Amounts side by side: (name, colour, amount, what stands behind the bar)."""
    most, left, room = max((amount for _, _, amount, _ in bars), default=0.0), 170, 240
    parts, height = [], LANE * len(bars) + 2 * TOP
    for at, (name, colour, amount, text) in enumerate(bars):
        y, width = TOP + at * LANE, (WIDTH - left - room) * amount / (most or 1.0)
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        bar = f'<rect class="fill {colour}" x="{left}" y="{y + 3}" width="{width:.2f}" height="{LANE - 6}"/>'
        parts += [bar, f'<text x="{left + width + 8:.1f}" y="{y + 15}">{escape(text)}</text>']
    return Frame(0.0, 0.0, height).svg(title, parts)


def gantt_chart(title: str, lanes: Sequence[tuple[str, Sequence[Bar]]], end_s: float) -> str:
    """Stretches of time, lane by lane; what is too near to be told apart is drawn as one."""
    height = LANE * len(lanes) + TOP + BOTTOM
    frame, parts = Frame(end_s, 0.0, height), []
    for at, (name, bars) in enumerate(lanes):
        y = TOP + at * LANE
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        for bar in _drawn(bars, end_s * LEAST_WIDTH / (WIDTH - LEFT - RIGHT)):
            x, width = frame.x(bar.begin_s), max(frame.x(bar.end_s) - frame.x(bar.begin_s), LEAST_WIDTH)
            rect = f'<rect class="fill {bar.colour}" x="{x:.2f}" y="{y + 2}" width="{width:.2f}" height="{LANE - 4}">'
            parts.append(f"{rect}<title>{escape(bar.title)}</title></rect>")
    return frame.svg(title, [*parts, frame.time_axis()])


def _drawn(bars: Sequence[Bar], gap_s: float) -> list[Bar]:
    """In order of time, the most frequent colour first: what is rare stays visible on top of it."""
    by_colour: dict[str, list[Bar]] = {}
    for bar in sorted(bars):
        found = by_colour.setdefault(bar.colour, [])
        if found and bar.begin_s - found[-1].end_s < gap_s and found[-1].end_s - found[-1].begin_s < gap_s:
            found[-1] = found[-1]._replace(end_s=bar.end_s, title=f"{found[-1].title.removesuffix(' ...')} ...")
        else:
            found.append(bar)
    return [bar for found in sorted(by_colour.values(), key=len, reverse=True) for bar in found]
