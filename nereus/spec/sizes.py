"""Numbers of bytes, as people write them: `64MiB`, `1.5GiB`, `512MB`, or a whole number."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field, Strict

UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
"""Bytes of each unit: KB to TB are powers of 1000, KiB to TiB powers of 1024."""

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([A-Za-z]+)", re.ASCII)


def parse_bytes(value: object) -> object:
    """Bytes of a string such as `1.5GiB`, rounded down; anything that is no string is left to the type's own check."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None or match[2] not in UNITS:
        raise ValueError(f"it must be a whole number of bytes or a size such as 64MiB; the units are {', '.join(UNITS)}")
    return int(Fraction(match[1]) * UNITS[match[2]])


Bytes = Annotated[int, Strict(), Field(ge=1), BeforeValidator(parse_bytes)]
"""A positive number of bytes."""
