"""Training logs of others as one table: a CSV, or JSON objects line by line as verl's `file` logger writes them.

step,response_length_mean,...                                       -> rows: (line, {column: value})
{"step": 1, "data": {"response_length/mean": 512.0, ...}}

A column is looked up by the names that logs give it; `a/b` and `a_b` are one name, since spreadsheets spell it so.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nereus.errors import UserError

STEP_COLUMNS = ("step", "gradient_step", "training_step", "_step")
"""What logs call the step."""
LENGTH_COLUMNS = (
    "response_length_mean",
    "response_length/mean",
    "completions/mean_length",
    "completion_length",
    "response_length",
)
"""What verl and TRL call the mean length of a step's responses."""

MOST = 1e9
"""Tokens or seconds beyond it are a slip of the pen."""


@dataclass(frozen=True, slots=True)
class LogTable:
    """The rows of a log."""

    path: Path
    columns: tuple[str, ...]
    """In the order in which they first occur."""
    rows: tuple[tuple[int, Mapping[str, object]], ...]
    """Line of the file, and what stands in its columns; nothing where there is no figure."""

    def column(self, names: Sequence[str]) -> str:
        """The column of one of these names. Raises UserError where there is none."""
        found = self.optional(names)
        if found is None:
            raise UserError(f"{self.path}: there is no column {names[0]}; accepted names are {', '.join(names)}")
        return found

    def optional(self, names: Sequence[str]) -> str | None:
        """The same; None where there is none."""
        return next(
            (spelled for name in names for spelled in (name, name.replace("/", "_")) if spelled in self.columns), None
        )

    def number(self, line: int, row: Mapping[str, object], column: str | None) -> float | None:
        """A finite figure of a row; None where it has none. Raises UserError with the line and the value."""
        value = row.get(column) if column else None
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        try:
            found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            found = math.nan
        if not math.isfinite(found):
            raise UserError(f"{self.path}, line {line}: {column} {value!r} is not allowed; it must be a finite number")
        return found


def read_log(path: Path) -> LogTable:
    """The table in a file. Raises UserError with the file and the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        kinds = f"a CSV with the columns step and {LENGTH_COLUMNS[0]}, or JSON line by line"
        raise UserError(f"{path}: there is no such file; it must be {kinds}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: it must be a readable file of UTF-8 text: {error}") from None
    return _of_json(path, text) if text.lstrip().startswith("{") else _of_csv(path, text)


def _of_csv(path: Path, text: str) -> LogTable:
    try:
        header, *lines = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    except csv.Error as error:
        raise UserError(f"{path}: it must be a readable CSV: {error}") from None
    header = [name.strip() for name in header]
    rows = tuple((number, dict(zip(header, line, strict=False))) for number, line in enumerate(lines, 2) if line)
    return LogTable(path, tuple(header), rows)


def _of_json(path: Path, text: str) -> LogTable:
    """verl puts the figures of a step into `data`; flat objects are taken too."""
    rows: list[tuple[int, Mapping[str, object]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: it must be one JSON object: {error}") from None
        if not isinstance(found, dict):
            raise UserError(f"{path}, line {number}: {line[:60]!r} is not allowed; it must be one JSON object")
        data = found.pop("data", {})
        rows.append((number, {**found, **(data if isinstance(data, dict) else {})}))
    return LogTable(path, tuple(dict.fromkeys(column for _, row in rows for column in row)), tuple(rows))
