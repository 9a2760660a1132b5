"""Response lengths over the steps of a run: from a training log, or a curve that was read off a figure.

step,response_length_mean[,...] -> ((step, mean response in tokens), ...)
"""

from __future__ import annotations

from pathlib import Path

from nereus.errors import UserError
from nereus.spec.log_table import LENGTH_COLUMNS, MOST, STEP_COLUMNS, read_log


def read_lengths(path: Path) -> tuple[tuple[int, float], ...]:
    """(step, mean response in tokens), steps ascending; rows without a length are left out.

    Raises UserError with the file, the line and the value.
    """
    log = read_log(path)
    step, length = log.column(STEP_COLUMNS), log.column(LENGTH_COLUMNS)
    found: list[tuple[int, float]] = []
    for line, row in log.rows:
        mean = log.number(line, row, length)
        if mean is None:
            continue
        at, seen = log.number(line, row, step), f"{path}, line {line}: {step} {row.get(step)!r} is not allowed"
        if at is None or not at.is_integer():
            raise UserError(f"{seen}; it must be a whole number")
        if found and at <= found[-1][0]:
            raise UserError(f"{seen}; steps must rise")
        if not 0 < mean <= MOST:
            bounds = f"above 0 and at most {MOST:.0f}"
            raise UserError(f"{path}, line {line}: {length} {row[length]!r} is not allowed; it must be {bounds}")
        found.append((int(at), mean))
    if not found:
        raise UserError(f"{path}: no row has a step and a length; a forecast needs at least one")
    return tuple(found)
