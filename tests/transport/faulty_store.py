"""A unit store that fails once where a fault is planned, and says so: faults are scripts, counted when they fire."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import TensorRef
from nereus.transport.ports import NOTHING, Shards
from nereus.transport.store import UnitStore

Verb = Literal["open", "land", "release"]


class Fault(NamedTuple):
    """The first such call that concerns this tensor of this unit fails."""

    verb: Verb
    unit: UnitId
    ref: TensorRef


class FaultyStore(UnitStore):
    """A unit store with at most one planned fault."""

    planned: Fault | None = None
    num_fired = 0

    def open(self, unit: UnitId, shards: Shards, taken_over: Mapping[TensorRef, UnitId] = NOTHING) -> None:
        self._maybe_fail("open", unit, [tensor.ref for tensor in shards])
        super().open(unit, shards, taken_over)

    def land(self, unit: UnitId, ref: TensorRef, box: Box) -> None:
        self._maybe_fail("land", unit, [ref])
        super().land(unit, ref, box)

    def release(self, unit: UnitId, refs: Collection[TensorRef] | None = None) -> None:
        if refs is not None:
            self._maybe_fail("release", unit, refs)
        super().release(unit, refs)

    def _maybe_fail(self, verb: Verb, unit: UnitId, refs: Collection[TensorRef]) -> None:
        fault = self.planned
        if fault is not None and (verb, unit) == fault[:2] and fault.ref in refs:
            self.planned, self.num_fired = None, self.num_fired + 1
            raise OSError(f"{verb} of {fault.ref} of {unit}: the fault that was planned")
