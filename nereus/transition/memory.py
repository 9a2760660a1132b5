"""How the bytes on each endpoint change as operations are carried out: units, what changes hands, buffers.

    units -> Held -> run(op) -> Demand of each member: before, peak, after

Shards that change hands are counted once. What an operation adds and gives back does not depend on which others ran before,
as long as those that it waits for did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, Site, StateSpec
from nereus.layout.layout import Layout, OptimizerShard
from nereus.layout.moves import Move
from nereus.layout.tensors import CanonicalTensor, TensorRef
from nereus.transition.messages import buffers
from nereus.transition.ops import Op

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


class Demand(NamedTuple):
    """What an operation does to the memory of one of its endpoints, in bytes."""

    before: int
    peak: int
    """While it runs, buffers included."""
    after: int


@dataclass(slots=True)
class Held:
    """The bytes of each unit on each endpoint; where a stream took a unit apart, those of its tensors."""

    states: Mapping[str, StateSpec]
    used: dict[EndpointId, int] = field(default_factory=dict)
    sites: dict[Site, int] = field(default_factory=dict)
    cuts: dict[Site, tuple[Layout, int, OptimizerShard]] = field(default_factory=dict)
    handed: dict[Site, set[TensorRef]] = field(default_factory=dict)
    """What each site has handed over."""

    @classmethod
    def of(cls, emus: Iterable[Emu], states: Mapping[str, StateSpec]) -> Held:
        """What these units hold."""
        held = cls(states)
        for emu in emus:
            held.open(emu)
        return held

    def run(self, op: Op) -> dict[EndpointId, Demand]:
        """Carry an operation out; what it did to the memory of each of its endpoints."""
        before = {endpoint: self.used.get(endpoint, 0) for endpoint in op.members}
        peak = dict(before)
        buckets = op.stream.buckets if op.stream else (None,)
        for bucket, handed, buffer in zip(buckets, _handed(op), buffers(op), strict=True):
            for emu in op.makes:
                self.open(emu, bucket)
            for move in handed:
                self.hand_over(move)
            for endpoint in before:
                peak[endpoint] = max(peak[endpoint], self.used.get(endpoint, 0) + buffer.get(endpoint, 0))
            for site in op.frees:
                self.release(site, bucket)
        return {e: Demand(level, peak[e], self.used.get(e, 0)) for e, level in before.items()}

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
