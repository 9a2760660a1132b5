"""Traces that people measured or wrote: how many devices were available over time.

    CSV --read_availability--> AvailabilityTrace --scaled--> counts of this cluster --by_steps--> one count per boundary

A trace is a step function: a row holds until the next one, and the last row marks the end. Measured files repeat the last
count there, so that it lasts; a trace whose last row is a change reaches that count only at its very end.
"""

from __future__ import annotations

import csv
import io
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nereus.errors import UserError

TIME, COUNT = "time_s", "available_gpus"
"""The columns that are read; any others are ignored."""

_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_TIME = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class AvailabilityTrace:
    """Available devices over time."""

    points: tuple[tuple[float, int], ...]
    """(time in seconds, devices from then on), at least one, times ascending. Neighbours may have the same count."""

    @property
    def duration_s(self) -> float:
        """Seconds from the first row to the last."""
        return self.points[-1][0] - self.points[0][0]

    def at(self, time_s: float) -> int:
        """Devices available at a time; before the first row as in it."""
        return self.points[max(bisect_right(self.points, time_s, key=lambda point: point[0]) - 1, 0)][1]

    def scaled(self, num_devices: int) -> AvailabilityTrace:
        """This trace for a cluster of another size: count * num_devices / largest count, halves rounded up.

        The largest count becomes the whole cluster, 0 stays 0, and what is more becomes 1 at least. Scaling twice is scaling
        once. Raises UserError if the trace never has a device.
        """
        most = max(count for _, count in self.points)
        if most == 0:
            raise UserError(f"{COUNT}: it is 0 in every row; at least one row must be above 0")
        return AvailabilityTrace(
            tuple((time, max((2 * count * num_devices + most) // (2 * most), min(count, 1))) for time, count in self.points)
        )

    def by_steps(self, num_steps: int) -> tuple[int, ...]:
        """Devices after 0, 1, ..., num_steps completed RL steps: the whole duration spread evenly over the steps.

        The first entry is the pool at the start. What comes and goes within one step is not seen.
        """
        start, duration = self.points[0][0], self.duration_s
        return tuple(self.at(start + duration * step / num_steps) for step in range(num_steps + 1))


def read_availability(path: str | Path) -> AvailabilityTrace:
    """The trace in a CSV file with the columns time_s and available_gpus. Raises UserError with line, column and value."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; it must be a CSV with the columns {TIME} and {COUNT}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: it must be a readable file of UTF-8 text: {error}") from None
    points: list[tuple[float, int]] = []
    for line, time, count in _rows(path, text):
        if not _TIME.fullmatch(time) or not math.isfinite(float(time)):
            raise _wrong(path, line, TIME, time, "it must be a finite number of seconds")
        if points and float(time) <= points[-1][0]:
            raise _wrong(path, line, TIME, time, f"times must ascend, and the row before has {points[-1][0]:g}")
        if not _COUNT.fullmatch(count):
            raise _wrong(path, line, COUNT, count, "it must be a whole number of devices, 0 to 999999999")
        points.append((float(time), int(count)))
    if not points:
        raise UserError(f"{path}: it has no rows; below the header there must be at least one")
    return AvailabilityTrace(tuple(points))


def _rows(path: Path, text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, time and count of each row that isn't blank."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if header is None:
                header = cells
                columns = tuple(_column(path, reader.line_num, header, name) for name in (TIME, COUNT))
                continue
            time, count = (cells[column] if column < len(cells) else "" for column in columns)
            yield reader.line_num, time, count
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: it must be CSV: {error}") from None
    if header is None:
        raise UserError(f"{path}: it is empty; the first line must be a header with the columns {TIME} and {COUNT}")


def _column(path: Path, line: int, header: Sequence[str], name: str) -> int:
    if header.count(name) != 1:
        raise _wrong(path, line, name, ",".join(header), f"the header must name {name} once; other columns are ignored")
    return header.index(name)


def _wrong(path: Path, line: int, column: str, value: str, allowed: str) -> UserError:
    shown = value if len(value) <= 60 else f"{value[:57]}..."
    return UserError(f"{path}, line {line}, {column}: {shown!r} is not allowed; {allowed}")
