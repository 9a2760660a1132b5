"""The lanes of a worker: named concurrency groups of one thread each.

Ray kills an actor on an unknown lane name and reorders calls in a lane of several threads, so lanes are an enum, and every
one has exactly one thread.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Lane(StrEnum):
    """Which thread of an actor runs a call."""

    COMPUTE = "compute"
    """Stage programs; only the loop submits to it, all ranks of an operation in one block. While the loop is held at
    a boundary the controller asks here for its end (`quiesce`): whatever was submitted before has ended then."""
    TRANSFER = "transfer"
    """Installing, moving and hashing state; only the controller submits to it."""
    CONTROL = "control"
    """Binding, reading, status: answers while the others are busy."""


LANES = {str(lane): 1 for lane in Lane}


def call(actor: Any, lane: Lane, method: str, *args: Any) -> Any:
    """Submit a call to a lane of an actor; returns the object reference."""
    return getattr(actor, method).options(concurrency_group=str(lane)).remote(*args)
