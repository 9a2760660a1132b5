"""Readers of drift files: the columns of the header decide which of the three shapes a file has.

CSV -> rows with line numbers -> (time, target, factor) -> Drift
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from nereus.errors import UserError
from nereus.spec.drift import MOST, TARGETS, Drift, Target, What, parse_target

TIME, TARGET, FACTOR = "time_s", "device_or_link", "factor"
"""The columns of Nereus' own drift files."""
ITERATION = "iteration"
"""The first column of a table by iteration."""
_WORKER = re.compile(r"worker(\d{1,6})_time_norm", re.ASCII)
"""The others of it: the time of each worker's mini-batch, in any unit."""
MACHINE, SPEED = ("region", "sku", "vm"), "rel_speed"
"""The columns of a table of machines; its speed is relative to the machines' usual one."""

Row = tuple[float, Target, float]


@dataclass(frozen=True, slots=True)
class Table:
    """A CSV file, and where its values stand."""

    path: Path
    header: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]
    """Line number and cells."""

    def cell(self, cells: Sequence[str], column: str) -> str:
        """The text of a column; empty where the row is short."""
        place = self.header.index(column)
        return cells[place] if place < len(cells) else ""

    def wrong(self, line: int, column: str, value: str, allowed: str) -> UserError:
        """The error for one value."""
        shown = value if len(value) <= 60 else f"{value[:57]}..."
        return UserError(f"{self.path}, line {line}, {column}: {shown!r} is not allowed; {allowed}")

    def number(self, line: int, column: str, text: str, allowed: str, fits: Callable[[float], bool]) -> float:
        """A finite number within bounds. Raises UserError."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not fits(value):
            raise self.wrong(line, column, text, allowed)
        return value


def read_drift(path: str | Path) -> Drift:
    """The drift in a CSV file of one of the three shapes. Raises UserError with the file, line, column and value."""
    table = _table(Path(path))
    for columns, rows in ((_OWN, _own), ((ITERATION,), _iterations), (_MACHINES, _machines)):
        if set(columns) <= set(table.header):
            found = list(rows(table))
            if not found:
                raise UserError(f"{table.path}: it has no rows; below the header there must be at least one")
            return Drift.of(found)
    shapes = " or ".join(",".join(columns) for columns in (_OWN, (ITERATION, "worker0_time_norm"), _MACHINES))
    raise table.wrong(1, "header", ",".join(table.header), f"it must have the columns {shapes}; others are ignored")


_OWN = (TIME, TARGET, FACTOR)
_MACHINES = (*MACHINE, TIME, SPEED)


def _table(path: Path) -> Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; it must be a CSV with the columns {','.join(_OWN)}") from None
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: it must be a readable CSV of UTF-8 text: {error}") from None
    rows = [(line, cells) for line, cells in rows if any(cells)]
    if not rows:
        raise UserError(f"{path}: it is empty; the first line must be a header with the columns {','.join(_OWN)}")
    line, header = rows[0]
    table = Table(path, header, rows[1:])
    twice = [name for name in header if name and header.count(name) > 1]
    if twice:
        raise table.wrong(line, "header", ",".join(header), f"it must name {twice[0]} once")
    return table


def _own(table: Table) -> Iterator[Row]:
    last: dict[Target | str, float] = {}
    for line, cells in table.rows:
        time = table.number(line, TIME, table.cell(cells, TIME), "it must be a finite number of seconds", lambda _: True)
        text = table.cell(cells, TARGET)
        target = parse_target(text)
        if target is None:
            raise table.wrong(line, TARGET, text, f"it must be {TARGETS}")
        _check_order(table, line, TIME, time, target, last)
        allowed = f"it must be a number above 0 and up to {MOST:g}: 1 is the usual speed, 2 takes twice as long"
        yield time, target, table.number(line, FACTOR, table.cell(cells, FACTOR), allowed, lambda value: 0 < value <= MOST)


def _check_order(
    table: Table, line: int, column: str, time: float, of: Target | str, last: dict[Target | str, float]
) -> None:
    """Each target's times ascend."""
    if of in last and time <= last[of]:
        told = f"it must be above that of the row of {of} before, {last[of]:g}"
        raise table.wrong(line, column, f"{time:g}", told)
    last[of] = time


def _iterations(table: Table) -> Iterator[Row]:
    """A worker is the device of its number; its factor is its time over the median of its own times. Empty cells say
    nothing."""
    workers = {name: int(match[1]) for name in table.header if (match := _WORKER.fullmatch(name))}
    if not workers:
        raise table.wrong(1, "header", ",".join(table.header), "beside iteration there must be columns workerN_time_norm")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in workers}
    last: dict[Target | str, float] = {}
    for line, cells in table.rows:
        text = table.cell(cells, ITERATION)
        at = table.number(line, ITERATION, text, "it must be an iteration, 0 or more", lambda value: value >= 0)
        _check_order(table, line, ITERATION, at, "the table", last)
        for name in workers:
            if text := table.cell(cells, name):
                taken = table.number(line, name, text, "it must be a number above 0, or empty", lambda value: value > 0)
                times[name].append((at, taken))
    for name, points in times.items():
        usual = median(taken for _, taken in points) if points else 1.0
        yield from ((at, Target(What.DEVICE, (workers[name],)), min(taken / usual, MOST)) for at, taken in points)


def _machines(table: Table) -> Iterator[Row]:
    """Machines are devices in the order in which they come; their factor is one over their relative speed."""
    devices: dict[tuple[str, ...], int] = {}
    last: dict[Target | str, float] = {}
    for line, cells in table.rows:
        name = tuple(table.cell(cells, column) for column in MACHINE)
        target = Target(What.DEVICE, (devices.setdefault(name, len(devices)),))
        time = table.number(line, TIME, table.cell(cells, TIME), "it must be a finite number of seconds", lambda _: True)
        _check_order(table, line, TIME, time, target, last)
        allowed = f"it must be a number of {1 / MOST:g} or more"
        yield time, target, 1 / table.number(line, SPEED, table.cell(cells, SPEED), allowed, lambda value: value >= 1 / MOST)
