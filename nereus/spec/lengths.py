"""Response lengths over the steps of a run, from a CSV: a training log, or a curve that was read off a figure.

step,response_length_mean[,...] -> ((step, mean response in tokens), ...)
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
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

MOST_TOKENS = 10**9
"""A response that is longer is a slip of the pen."""


def read_lengths(path: Path) -> tuple[tuple[int, float], ...]:
    """(step, mean response in tokens), steps ascending; rows without a length are left out.

    Raises UserError with the file, the line and the value.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such file; it must be a CSV with the columns step and {LENGTH_COLUMNS[0]}"
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: it must be a readable CSV: {error}") from None
    header = [name.strip() for name in rows[0]] if rows else []
    step, length = _column(path, header, STEP_COLUMNS), _column(path, header, LENGTH_COLUMNS)
    found: list[tuple[int, float]] = []
    for line, row in enumerate(rows[1:], 2):
        if len(row) <= max(step, length) or not row[length].strip():
            continue
        at, mean = _number(path, line, header[step], row[step]), _number(path, line, header[length], row[length])
        if not at.is_integer():
            raise UserError(f"{path}, line {line}: {header[step]} {row[step]!r} is not allowed; it must be a whole number")
        if found and at <= found[-1][0]:
            raise UserError(f"{path}, line {line}: {header[step]} {row[step]!r} is not allowed; steps must rise")
        if not 0 < mean <= MOST_TOKENS:
            bounds = f"above 0 and at most {MOST_TOKENS}"
            raise UserError(f"{path}, line {line}: {header[length]} {row[length]!r} is not allowed; it must be {bounds}")
        found.append((int(at), mean))
    if not found:
        raise UserError(f"{path}: no row has a step and a length; a forecast needs at least one")
    return tuple(found)


def _column(path: Path, header: Sequence[str], names: Sequence[str]) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise UserError(f"{path}: there is no column {names[0]}; accepted names are {', '.join(names)}")


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{path}, line {line}: {column} {text!r} is not allowed; it must be a finite number")
    return value
