"""Whether a transition fits in memory, checked before anything moves (paper, section 4.3).

    used(device) = every unit on it now, + units that operations open, + buffers, - what Destroys and streams release

Shards that change hands are counted once, other inputs live until the commit. The first operation that does not fit is
named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, Site, StateSpec
from nereus.layout.layout import Layout, OptimizerShard
from nereus.layout.moves import Move
from nereus.layout.tensors import CanonicalTensor, TensorRef
from nereus.transition.messages import buffers
from nereus.transition.ops import Op, Transition
from nereus.transition.streaming import streamed


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
    held = _Held(states)
    for emu in current:
        held.open(emu)
    peak = dict(held.used)
    for op in (*transition.moving, *transition.held):
        members = op.members
        buckets = op.stream.buckets if op.stream else (None,)
        for bucket, handed, buffer in zip(buckets, _handed(op), buffers(op), strict=True):
            for emu in op.makes:
                held.open(emu, bucket)
            for move in handed:
                held.hand_over(move)
            for endpoint in members:
                needed = held.used.get(endpoint, 0) + buffer.get(endpoint, 0)
                peak[endpoint] = max(peak.get(endpoint, 0), needed)
                if needed > usable_bytes:
                    return MemoryCheck(peak, MemoryViolation(endpoint, op.id, needed, int(usable_bytes)))
            for site in op.frees:
                held.release(site, bucket)
    return MemoryCheck(peak, None)


def fitted(
    transition: Transition, current: Iterable[Emu], states: Mapping[str, StateSpec], usable_bytes: float
) -> tuple[Transition, MemoryCheck]:
    """The transition with as many operations as streams as it takes to fit, if it can, and its check."""
    standing = tuple(current)
    while True:
        check = check_memory(transition, standing, states, usable_bytes)
        # What is in the way may be an operation before the one that does not fit. Those of a model-stage are alike.
        could = [op for op in transition.moving if op.makes and op.stream is None]
        stages = {op.stage for op in could if check.violation and op.id == check.violation.op} or {
            op.stage for op in could if check.violation and check.violation.endpoint in op.members
        }
        if not stages:
            return transition, check
        transition = streamed(transition, stages, standing, states)


Bucket = tuple[TensorRef, ...]


def _handed(op: Op) -> tuple[list[Move], ...]:
    """What changes hands in each bucket of a stream, or at once."""
    if op.stream is None:
        return (list(op.handovers),)
    bucket_of = {ref: number for number, bucket in enumerate(op.stream.buckets) for ref in bucket}
    handed: tuple[list[Move], ...] = tuple([] for _ in op.stream.buckets)
    for move in op.handovers:
        apart: dict[int, list[CanonicalTensor]] = {}
        for tensor in move.tensors:
            apart.setdefault(bucket_of[tensor.ref], []).append(tensor)
        for number, tensors in apart.items():
            handed[number].append(move._replace(tensors=tuple(tensors)))
    return handed


@dataclass(slots=True)
class _Held:
    """The bytes of each unit on each endpoint; where a stream took a unit apart, those of its tensors."""

    states: Mapping[str, StateSpec]
    used: dict[EndpointId, int] = field(default_factory=dict)
    sites: dict[Site, int] = field(default_factory=dict)
    cuts: dict[Site, tuple[Layout, int, OptimizerShard]] = field(default_factory=dict)
    handed: dict[Site, set[TensorRef]] = field(default_factory=dict)
    """What each site has handed over."""

    def open(self, emu: Emu, bucket: Bucket | None = None) -> None:
        for rank, endpoint in enumerate(emu.endpoints):
            site = Site(endpoint, emu.unit)
            self.cuts[site] = emu.layout, rank, emu.optimizer
            self._change(site, self._bytes(site, bucket))

    def hand_over(self, move: Move) -> None:
        """What was counted for both is the target's alone."""
        self.handed.setdefault(move.source, set()).update(tensor.ref for tensor in move.tensors)
        self._change(move.source, -move.num_bytes)

    def release(self, site: Site, bucket: Bucket | None) -> None:
        self._change(site, -(self.sites[site] if bucket is None else self._bytes(site, self._kept(site, bucket))))

    def _change(self, site: Site, num_bytes: int) -> None:
        self.sites[site] = self.sites.get(site, 0) + num_bytes
        self.used[site.endpoint] = self.used.get(site.endpoint, 0) + num_bytes

    def _bytes(self, site: Site, bucket: Bucket | None) -> int:
        layout, rank, optimizer = self.cuts[site]
        state = self.states[site.unit.stage]
        if bucket is None:
            return state.shard_bytes(layout, rank, optimizer=optimizer)
        return sum(state.tensor_bytes(ref, layout, rank, optimizer) for ref in bucket)

    def _kept(self, site: Site, bucket: Bucket) -> Bucket:
        """What a site still has of a bucket."""
        handed = self.handed.get(site)
        return tuple(ref for ref in bucket if ref not in handed) if handed else bucket
