"""Sets of devices, as people write them: `[0, 1, 2, 6]` or `0-2,6`. The order counts, it is the order of ranks."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from nereus.spec.declared import Whole

MAX_NODES = 1024
"""Largest number of nodes of a cluster: a bound on what a slip of the pen can allocate, not on what is sensible."""
MAX_DEVICES_PER_NODE = 128
"""Largest number of devices of a node; the largest real ones have 72."""
MAX_DEVICES = MAX_NODES * MAX_DEVICES_PER_NODE
"""Every device number is below this one."""

_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def parse_devices(value: object) -> object:
    """Device numbers of a string such as `0-3,6`; anything that is no string is left to the type's own check."""
    if not isinstance(value, str):
        return value
    devices: list[int] = []
    for part in value.split(","):
        match = _SPAN.fullmatch(part.strip())
        if match is None:
            raise ValueError("it must be a list of device numbers or spans such as 0-3,6")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= MAX_DEVICES:
            raise ValueError(f"the span {part.strip()} must rise and stay below {MAX_DEVICES}")
        devices.extend(range(first, last + 1))
    return tuple(devices)


def format_devices(devices: tuple[int, ...]) -> str:
    """The inverse of `parse_devices`, in the order given: (0, 1, 2, 6) -> `0-2,6`."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"


Devices = Annotated[tuple[Annotated[Whole, Field(ge=0, lt=MAX_DEVICES)], ...], BeforeValidator(parse_devices)]
"""Positions of devices in the cluster, in node order: device d is on node d // devices_per_node."""
