"""Streams replayed with every byte on every endpoint counted: the reference of what a plan says about memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.tensors import TensorRef
from nereus.transition.collectives import Pairwise
from nereus.transition.ops import Op, Transition
from tests.builders import degrees, make_emus, make_layout, make_model, rank_masks
from tests.layout.bounds import held_bytes, width
from tests.layout.cases import SHAPES
from tests.layout.models import thin_trained_state
from tests.transition.interpreter import Interpreter
from tests.transition.scenarios import planned, target_plan

TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))


def buffered(part: Op) -> Counter[EndpointId]:
    """What each endpoint's buffers hold: all that it sends and all that it receives, up to a bucket each way."""
    sent, received = Counter[EndpointId](), Counter[EndpointId]()
    for exchange in part.exchanges:
        if isinstance(exchange, Pairwise):
            for move in exchange.moves:
                sent[move.source.endpoint] += move.num_bytes
                received[move.target.endpoint] += move.num_bytes
        else:
            for member, parts in zip(exchange.group.members, exchange.parts, strict=True):
                size = sum(each.num_bytes for each in parts)
                sent[member] += size * (len(exchange.parts) - 1)
                received.update({other: size for other in exchange.group.members if other != member})
    return Counter({e: min(sent[e], part.bucket_bytes) + min(received[e], part.bucket_bytes) for e in {*sent, *received}})


class Weighed(Interpreter):
    """Counts what each endpoint holds, in shards and in buffers, whenever an operation has opened its shards."""

    def __init__(self, state: StateSpec, emus: Iterable[Emu], transition: Transition) -> None:
        emus = tuple(emus)
        super().__init__(state, emus)
        self.peak = held_bytes(state, emus)
        self.handed: set[tuple[EndpointId, UnitId, TensorRef]] = set()
        everyone = (*emus, *(emu for op in transition.ops for emu in op.makes))
        self.sizes = {
            (endpoint, emu.unit, tensor.ref): int(mask.sum()) * width(tensor)
            for emu in everyone
            for endpoint, tensor, mask in rank_masks(state, emu)
        }

    def opened(self, part: Op) -> None:
        used = buffered(part)
        self.handed |= {(*move.source, tensor.ref) for move in part.handovers for tensor in move.tensors}
        for (endpoint, unit), shards in self.shards.items():
            counted = (key for ref in shards if (key := (endpoint, unit, ref)) not in self.handed)
            used[endpoint] += sum(self.sizes[key] for key in counted)
        self.peak |= used

    @property
    def largest(self) -> Counter[EndpointId]:
        """The largest shard of a single tensor on each endpoint."""
        found: Counter[EndpointId] = Counter()
        for (endpoint, _, _), size in self.sizes.items():
            found |= Counter({endpoint: size})
        return found


class Streaming(NamedTuple):
    """A transition of which every operation that moves is a stream."""

    state: StateSpec
    current: tuple[Emu, ...]
    transition: Transition

    def refs(self, op: Op, buckets: slice) -> list[TensorRef]:
        assert op.stream is not None
        return [ref for bucket in op.stream.buckets[buckets] for ref in bucket]

    def run(self) -> Weighed:
        run = Weighed(self.state, self.current, self.transition)
        for op in (*self.transition.moving, *self.transition.held):
            run.run(op)
        return run


def streaming(seed: int, *, any_devices: bool = False, fuse: bool = True) -> Streaming:
    """A random transition, on the devices that it suits or on any, in buckets of a random size."""
    random = Random(seed)
    source, target = random.choice(SHAPES), random.choice(SHAPES)
    size = make_layout(source).size * degrees(source)["dp"]
    current = make_emus(source, devices=random.sample(range(10), size) if any_devices else range(size))
    plan = target_plan(current, target, TRAINED)
    bucket_bytes = random.choice((64, 256, 1024, 4096))
    return Streaming(TRAINED, current, planned(TRAINED, current, plan, fuse=fuse, stream=True, bucket_bytes=bucket_bytes))
