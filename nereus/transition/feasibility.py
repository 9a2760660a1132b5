"""Whether a transition fits in memory, checked before anything moves (paper, section 4.3).

    used(device) = every unit on it now, + units that operations open, + buffers; after the proof, - what Destroys release

Inputs live until the commit, so memory only rises until then; the first operation that does not fit is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.transition.ops import AllGather, Op, Transition


@dataclass(frozen=True, slots=True)
class MemoryViolation:
    """The first operation that does not fit."""

    endpoint: EndpointId
    op: str
    needed_bytes: int
    usable_bytes: int

    def __str__(self) -> str:
        return f"{self.op} needs {self.needed_bytes} bytes on {self.endpoint}, {self.usable_bytes} are usable"


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """The peak of each endpoint over a transition, and what does not fit, if anything."""

    peak_bytes: Mapping[EndpointId, int]
    violation: MemoryViolation | None


def check_memory(
    transition: Transition, current: Iterable[Emu], states: Mapping[str, StateSpec], usable_bytes: float
) -> MemoryCheck:
    """Walk through the operations in the order in which they are submitted."""
    sizes: dict[tuple[UnitId, EndpointId], int] = {}
    used: dict[EndpointId, int] = {}
    for emu in current:
        _open(emu, states, sizes, used)
    peak = dict(used)
    for op in (*transition.moving, *transition.held):
        for emu in op.makes:
            _open(emu, states, sizes, used)
        for endpoint in op.members:
            needed = used.get(endpoint, 0) + buffer_bytes(op, endpoint)
            peak[endpoint] = max(peak.get(endpoint, 0), needed)
            if needed > usable_bytes:
                return MemoryCheck(peak, MemoryViolation(endpoint, op.id, needed, int(usable_bytes)))
        if op.primitive == "Destroy":
            for emu in op.ends:
                for endpoint in emu.endpoints:
                    used[endpoint] -= sizes.pop((emu.unit, endpoint))
    return MemoryCheck(peak, None)


def buffer_bytes(op: Op, endpoint: EndpointId) -> int:
    """Bytes of the collective buffers that an operation holds on one endpoint."""
    total = 0
    for exchange in op.exchanges:
        if endpoint not in exchange.group.members:
            continue
        if isinstance(exchange, AllGather):
            sizes = [sum(part.num_bytes for part in parts) for parts in exchange.parts]
            total += sum(sizes) * (2 if len(set(sizes)) == 1 else 1)
        else:
            total += sum(m.num_bytes for m in exchange.moves if endpoint in (m.source.endpoint, m.target.endpoint))
    return total


def _open(
    emu: Emu,
    states: Mapping[str, StateSpec],
    sizes: dict[tuple[UnitId, EndpointId], int],
    used: dict[EndpointId, int],
) -> None:
    for rank, endpoint in enumerate(emu.endpoints):
        size = states[emu.stage].shard_bytes(emu.layout, rank)
        sizes[emu.unit, endpoint] = size
        used[endpoint] = used.get(endpoint, 0) + size
