"""Two endpoints in one process, a thread each, over real Gloo: exchanges whose staging can be looked into."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.distributed import HashStore

from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, Site, UnitId
from nereus.layout.moves import Move
from nereus.layout.tensors import CanonicalTensor, Kind, Place
from nereus.transition.lowering import by_reach, pairwise
from nereus.transition.messages import Message, message_bytes
from nereus.transition.ops import BUCKET_BYTES, Op
from nereus.transport.communicators import Communicators
from nereus.transport.exchange import Exchanges
from nereus.transport.memory import DeviceMemory
from nereus.transport.ports import ShardStore
from nereus.transport.staging import Buffers, Staging
from nereus.transport.store import UnitStore
from tests.transport.oracle import whole
from tests.transport.worker import CPU

A, B = Site("d0.0", UnitId("actor_training", 0, 0)), Site("d1.0", UnitId("actor_training", 1, 1))


class MeasuredBuffers(Buffers):
    """Buffers that keep the most bytes that they held at once, in use or not."""

    peak_bytes = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        buffer = super().take(num_bytes)
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return buffer


class SpiedStaging(Staging):
    """Staging buffers, and what went through them."""

    def __init__(self, device: torch.device, bucket_bytes: int) -> None:
        super().__init__(device, bucket_bytes)
        self.receiving = self._received = MeasuredBuffers(device, bucket_bytes)
        self.sending = self._sent = MeasuredBuffers(device, bucket_bytes)
        self.packed_messages: list[Message] = []
        self.unpacked_messages: list[Message] = []

    @property
    def peak_bytes(self) -> int:
        return self._received.peak_bytes + self._sent.peak_bytes

    def pack(self, store: ShardStore, message: Message, buffer: torch.Tensor) -> None:
        self.packed_messages.append(message)
        super().pack(store, message, buffer)

    def unpack(self, store: ShardStore, message: Message, buffer: torch.Tensor) -> None:
        self.unpacked_messages.append(message)
        super().unpack(store, message, buffer)


def matrix(name: str, rows: int, columns: int, dtype: str = "float32") -> CanonicalTensor:
    return CanonicalTensor(name, Kind.PARAMETER, (rows, columns), dtype, Place.FIRST)


def sent(boxes: Iterable[tuple[CanonicalTensor, Box]], bucket_bytes: int = BUCKET_BYTES) -> Op:
    """An operation that sends these boxes from A to B."""
    _, wire = by_reach(tuple(Move((tensor,), box, A, B) for tensor, box in boxes))
    exchanges = pairwise(wire)
    size = message_bytes(exchanges, bucket_bytes)
    return Op("op", ("Extend",), A.unit.stage, (), (), (), exchanges, (), bucket_bytes, size)


def exchange(op: Op, stores: dict[EndpointId, UnitStore]) -> dict[EndpointId, SpiedStaging]:
    """Carry out an operation on both ends; returns their staging."""
    rendezvous = HashStore()

    def end(me: EndpointId) -> SpiedStaging:
        communicators, staging = Communicators(rendezvous, me, CPU, timeout_s=20.0), SpiedStaging(CPU, op.bucket_bytes)
        communicators.ensure(op.groups, "e1")
        copied: list[EndpointId] = []
        Exchanges.of(op, me).run(stores[me], communicators, staging, lambda: copied.append(me))
        assert copied == [me], "local copies are made once"
        return staging

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(stores, pool.map(end, stores), strict=True))


def make_stores(sources: Iterable[CanonicalTensor], targets: Iterable[CanonicalTensor]) -> dict[EndpointId, UnitStore]:
    """A holds the sources with the oracle's values; B has opened the targets."""
    stores = {site.endpoint: UnitStore(CPU, DeviceMemory(site.endpoint, 1 << 30)) for site in (A, B)}
    for tensor in sources:
        box = Box.whole(tensor.shape)
        stores[A.endpoint].open(A.unit, {tensor: (box,)})
        stores[A.endpoint].write(A.unit, tensor.ref, box).copy_(whole(tensor))
        stores[A.endpoint].land(A.unit, tensor.ref, box)
    stores[B.endpoint].open(B.unit, {tensor: (Box.whole(tensor.shape),) for tensor in targets})
    return stores
