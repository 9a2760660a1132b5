"""What runs in each process of a fleet: a unit store, communicators, an executor and an abort watch, over Gloo."""

from __future__ import annotations

import os
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
from torch.distributed import TCPStore

from nereus.emu.digest import BoxDigest
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.tensors import Kind, TensorRef
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Program
from nereus.transport.abort import AbortWatch
from nereus.transport.communicators import Communicators
from nereus.transport.executor import Completion, Executor, Installation
from nereus.transport.memory import DeviceMemory
from tests.transport.faulty_store import Fault, FaultyStore
from tests.transport.oracle import elements, whole

CPU = torch.device("cpu")


class Worker:
    """One endpoint; every public method is a command."""

    def __init__(self, endpoint: EndpointId, port: int, timeout_s: float, capacity_bytes: int) -> None:
        def connect() -> TCPStore:
            return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))

        self.endpoint = endpoint
        self.memory = DeviceMemory(endpoint, capacity_bytes)
        self.store = FaultyStore(CPU, self.memory)
        self.communicators = Communicators(connect(), endpoint, CPU, timeout_s)
        self.executor = Executor(self.store, self.communicators, self.memory, endpoint)
        self.watch = AbortWatch(connect, endpoint, self.communicators.abort)
        self.watch.start()

    # What units hold

    def seed(self, emu: Emu, state: StateSpec, blank: bool) -> None:
        """Open a unit with the oracle's values, or with zeros."""
        shards = state.shards(emu.layout, emu.rank_of(self.endpoint), emu.optimizer)
        self.store.open(emu.unit, shards)
        for tensor, boxes in shards.items():
            for box in boxes:
                view = self.store.write(emu.unit, tensor.ref, box)
                view.zero_() if blank else view.copy_(whole(tensor)[box.slices((0,) * len(tensor.shape))])
                self.store.land(emu.unit, tensor.ref, box)

    def wrong_tensors(self, emu: Emu, state: StateSpec, origin: StateSpec) -> list[str]:
        """The tensors of a unit that are not, bit for bit, those of the oracle of `origin`, cut afresh."""
        rank = emu.rank_of(self.endpoint)
        held = {TensorRef(name, kind): t for kind in Kind for name, t in self.store.tensors(emu.unit, kind).items()}
        sources = {tensor.ref: tensor for tensor in origin.tensors}
        wrong = []
        for tensor in state.tensors:
            expected, found = elements(tensor, emu, rank, state, sources[tensor.ref]), held.get(tensor.ref)
            if not (expected.numel() == 0 if found is None else torch.equal(found.reshape(-1), expected)):
                wrong.append(f"{tensor.ref} at {self.endpoint}")
        return wrong

    def stale_parameters(self, emu: Emu, state: StateSpec) -> tuple[int, list[str]]:
        """How many elements of master copies are here, and of which boxes the parameter is not the cast."""
        shards = state.shards(emu.layout, emu.rank_of(self.endpoint), emu.optimizer)
        boxes = [(t, box) for t, held in shards.items() if t.kind is Kind.MASTER for box in held]
        stale = []
        for tensor, box in boxes:
            parameter = self.store.read(emu.unit, TensorRef(tensor.name, Kind.PARAMETER), box)
            master = self.store.read(emu.unit, tensor.ref, box)
            if not torch.equal(master.to(parameter.dtype), parameter):
                stale.append(f"{tensor.name} {box.low}:{box.high} at {self.endpoint}")
        return sum(box.volume for _, box in boxes), stale

    def digest(self, units: list[UnitId]) -> dict[UnitId, tuple[BoxDigest, ...]]:
        return self.executor.digest(units)

    # Movement

    def install(self, program: Program) -> Installation:
        return self.executor.install(program)

    def run(self, op: str) -> Completion:
        return self.executor.run(op)

    def settle(self) -> None:
        self.executor.settle()

    def bind(self, units: set[UnitId], groups: set[GroupKey]) -> None:
        self.executor.bind(units, groups)

    def fail_once(self, fault: Fault) -> None:
        self.store.planned = fault

    def faults_fired(self) -> int:
        return self.store.num_fired

    # Groups

    def ensure(self, keys: list[GroupKey], tag: str) -> tuple[int, int]:
        return self.communicators.ensure(keys, tag)

    def drop_groups(self) -> None:
        self.communicators.drop(())

    def abort(self) -> None:
        self.communicators.abort()

    def groups(self) -> frozenset[GroupKey]:
        return self.communicators.keys()

    def all_reduce(self, key: GroupKey, value: float) -> float:
        tensor = torch.full((8,), value)
        self.communicators.get(key).all_reduce(tensor)
        return float(tensor[0])

    def ring(self, key: GroupKey, num_elements: int) -> list[EndpointId]:
        """Send a large message to the next member and receive one from the previous; who wrote what arrived."""
        group = self.communicators.get(key)
        after, before = (group.members[(group.rank + step) % group.size] for step in (1, -1))
        received = torch.empty(num_elements)
        with group.batch() as batch:
            batch.send(torch.full((num_elements,), float(group.rank)), after, 3)
            batch.recv(received, before, 3)
        batch.finish()
        return [group.members[int(rank)] for rank in received.unique()]

    def gather(self, key: GroupKey) -> list[float]:
        group = self.communicators.get(key)
        out = [torch.empty(3) for _ in group.members]
        group.all_gather(out, torch.full((3,), float(group.rank)))
        last = torch.full((2,), float(group.rank))
        group.broadcast(last, group.members[-1])
        group.barrier()
        return [float(t[0]) for t in (*out, last)]

    # Resources

    def memory_use(self) -> tuple[dict[str, int], int]:
        return {**self.memory.by_category()}, sum(self.store.units().values())

    def units(self) -> dict[UnitId, int]:
        return self.store.units()

    def is_whole_or_absent(self) -> bool:
        """Whether nothing is open that has not landed."""
        return all(self.store.is_complete(unit) for unit in self.store.units())

    def reset_peak(self) -> None:
        self.memory.reset_peak()

    def peak_bytes(self) -> int:
        return self.memory.peak_bytes

    def open_handles(self) -> tuple[int, int]:
        """File descriptors and threads of this process."""
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def resident_bytes(self) -> int:
        """Memory of this process that is in RAM."""
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(pipe: Connection, endpoint: EndpointId, port: int, timeout_s: float, capacity_bytes: int) -> None:
    """Carry out commands in order until None comes."""
    torch.set_num_threads(1)
    worker = Worker(endpoint, port, timeout_s, capacity_bytes)
    pipe.send((True, None))
    while (command := pipe.recv()) is not None:
        method, args = command
        try:
            pipe.send((True, getattr(worker, method)(*args)))
        except Exception as error:
            pipe.send((False, error))
