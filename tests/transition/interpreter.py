"""Carries out a transition on numpy shards in one process: the reference of the lowering tests.

Each shard is a whole array in which -1 marks what has not landed. Reading what has not landed, writing twice, and touching
a unit that is not there are errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

import numpy as np

from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, Site, StateSpec, UnitId, by_number
from nereus.layout.layout import Layout, OptimizerShard
from nereus.layout.moves import Move
from nereus.layout.tensors import TensorRef
from nereus.transition.collectives import AllGather, Exchange
from nereus.transition.ops import Op
from tests.builders import Values, global_values, rank_masks

Key = Site | tuple[EndpointId, UnitId]


def at(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in zip(box.low, box.high, strict=True))


def cut_afresh(state: StateSpec, emus: Iterable[Emu]) -> dict[Key, dict[TensorRef, Values]]:
    """What these units hold of the global values; -1 where they hold nothing. The values cannot be written."""
    return {
        (endpoint, emu.unit): dict(shards)
        for emu in emus
        for endpoint, shards in zip(emu.endpoints, _cut(state, emu.layout, emu.optimizer), strict=True)
    }


@lru_cache(maxsize=2000)
def _cut(state: StateSpec, layout: Layout, optimizer: OptimizerShard) -> list[dict[TensorRef, Values]]:
    """The shards of each rank."""
    values, ranks = global_values(state), tuple(map(str, range(layout.size)))
    shards: dict[EndpointId, dict[TensorRef, Values]] = {rank: {} for rank in ranks}
    for rank, tensor, mask in rank_masks(state, Emu(UnitId("", 0, 0), layout, ranks, optimizer)):
        shards[rank][tensor.ref] = np.where(mask, values[tensor.ref], -1)
        shards[rank][tensor.ref].setflags(write=False)
    return list(shards.values())


class Interpreter:
    """The shards of all endpoints; `run` carries out one operation on all its members."""

    def __init__(self, state: StateSpec, emus: Iterable[Emu]) -> None:
        self._state = state
        self.shards = cut_afresh(state, emus)

    def run(self, op: Op, buckets: slice = slice(None), *, release: bool = True) -> None:
        """All of an operation: at once, or bucket by bucket; of a stream, these buckets. `release` is what comes last."""
        for bucket in op.stream.buckets[buckets] if op.stream else (None,):
            part = op if bucket is None else op.of_tensors(bucket)
            self._open(op, bucket)
            self.opened(part)
            self._move_all(part)
            if release:
                self._release(op, bucket)

    def drop(self, emus: Iterable[Emu], refs: Iterable[TensorRef]) -> None:
        """Release some tensors of these units, where they are open."""
        refs = tuple(refs)
        for emu in emus:
            for endpoint in emu.endpoints:
                for ref in refs:
                    self.shards.get((endpoint, emu.unit), {}).pop(ref, None)

    def opened(self, part: Op) -> None:
        """Called when the shards of an operation, or of a bucket of it, are open and nothing of it is released yet."""

    def _move_all(self, op: Op) -> None:
        for handover in op.handovers:
            assert handover.source.endpoint == handover.target.endpoint, "a shard changes hands on its endpoint"
            self._move(handover)
        for handover in op.handovers:
            for tensor in handover.tensors:
                held = (self.shards[site][tensor.ref] for site in (handover.source, handover.target))
                assert np.array_equal(*held), "a shard changes hands whole"
        for copy in op.copies:
            assert copy.source.endpoint == copy.target.endpoint, "a copy stays on its endpoint"
            self._move(copy)
        for wave in range(2):
            for exchange in op.exchanges:
                if exchange.wave == wave:
                    self._exchange(exchange)

    def _release(self, op: Op, refs: Collection[TensorRef] | None) -> None:
        for site in op.frees:
            for ref in list(self.shards[site]) if refs is None else refs:
                del self.shards[site][ref]

    def _open(self, op: Op, refs: Collection[TensorRef] | None) -> None:
        for emu in op.makes:
            for endpoint in emu.endpoints:
                if (endpoint, emu.unit) in op.standing:
                    continue
                held = self.shards.setdefault((endpoint, emu.unit), {})
                for tensor in self._state.tensors:
                    if refs is None or tensor.ref in refs:
                        assert tensor.ref not in held, "a shard is opened once"
                        held[tensor.ref] = np.full(tensor.shape, -1, dtype=np.int64)

    def _exchange(self, exchange: Exchange) -> None:
        members = exchange.group.members
        assert members == tuple(sorted(set(members), key=by_number))
        if isinstance(exchange, AllGather):
            self._gather(exchange)
            return
        for move in exchange.moves:
            assert {move.source.endpoint, move.target.endpoint} <= set(members)
            assert move.source.endpoint != move.target.endpoint
            self._move(move)

    def _move(self, move: Move) -> None:
        for tensor in move.tensors:
            self._write(move.target, tensor.ref, move.box, self._read(move.source, tensor.ref, move.box))

    def _gather(self, gather: AllGather) -> None:
        members = gather.group.members
        assert len(gather.parts) == len(gather.targets) == len(members)
        for sender, parts in zip(members, gather.parts, strict=True):
            for part in parts:
                for tensor in part.tensors:
                    values = self._read((sender, part.unit), tensor.ref, part.box)
                    for receiver, unit in zip(members, gather.targets, strict=True):
                        if receiver != sender:
                            self._write((receiver, unit), tensor.ref, part.box, values)

    def _read(self, site: Key, ref: TensorRef, box: Box) -> Values:
        values = self.shards[site[0], site[1]][ref][at(box)]
        assert values.size, "nothing is read"
        assert (values >= 0).all(), f"{site} reads {ref} {box}, which has not landed"
        return values

    def _write(self, site: Key, ref: TensorRef, box: Box, values: Values) -> None:
        target = self.shards[site[0], site[1]][ref]
        assert (target[at(box)] < 0).all(), f"{site} writes {ref} {box} twice"
        target[at(box)] = values
