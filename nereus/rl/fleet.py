"""The workers as the loop sees them: requests on units, weight syncs, and what devices hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nereus.control.report import Release
from nereus.emu.unit import Emu
from nereus.layout.tensors import Kind
from nereus.rl.assemble import Piece
from nereus.rl.endpoint import Answer, Status
from nereus.rl.programs import Request

Work = tuple[Emu, Request]
"""A request, and the unit whose ranks all run it."""


class Fleet(Protocol):
    """Called by the loop only, one call at a time; every verb blocks until all ranks have answered.

    Raises EndpointLost when a worker has died, and what a worker raised otherwise.
    """

    def compute(self, epoch: int, work: Sequence[Work]) -> list[list[Answer]]:
        """Run all requests at once; the answers of each unit's ranks, in rank order."""

    def sync(self, release: Release) -> None:
        """Carry out the weight sync of a release."""

    def read(self, emu: Emu, kind: Kind) -> list[Piece]:
        """What all ranks of a unit hold of one kind of state."""

    def status(self, release: Release) -> list[Status]:
        """What every device of a release holds, and its peak since the last call or commit."""
