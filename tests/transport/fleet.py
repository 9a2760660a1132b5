"""Processes that each serve one endpoint: a unit store, communicators, an executor and an abort watch, over Gloo.

    test -> pipe -> worker (one thread, commands in order)          TCPStore in the test's process

The oracle of a logical state is a function of each tensor's name, so every process can make and check its own shards.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any
from zlib import crc32

import torch
from torch.distributed import TCPStore

from nereus.emu.digest import BoxDigest, Digest, logical_digest
from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.tensors import CanonicalTensor, Kind
from nereus.transition.ops import GroupKey, Op, Program, Transition, program_for
from nereus.transport.abort import AbortWatch
from nereus.transport.communicators import Communicators
from nereus.transport.executor import Completion, Executor, Installation
from nereus.transport.memory import DeviceMemory
from nereus.transport.store import DTYPES, UnitStore

CPU = torch.device("cpu")
CAPACITY_BYTES = 1 << 30
ANSWER_S = 60.0
"""A generous bound for 'does not hang'; far above anything that a test waits for."""


@lru_cache(maxsize=4096)
def whole(tensor: CanonicalTensor) -> torch.Tensor:
    """The oracle's global tensor."""
    generator = torch.Generator().manual_seed(crc32(str(tensor.ref).encode()))
    if tensor.dtype == "int64":
        return torch.randint(1 << 40, tensor.shape, generator=generator)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(DTYPES[tensor.dtype])


def cut(tensor: CanonicalTensor, boxes: tuple[Box, ...], oracle: torch.Tensor) -> torch.Tensor:
    """The local tensor that these boxes make, cut from the oracle's."""
    parts = [oracle[box.slices((0,) * len(tensor.shape))] for box in boxes]
    return parts[0] if tensor.axis is None else torch.cat(parts, tensor.axis)


class Worker:
    """What runs in each process; every public method is a command."""

    def __init__(self, endpoint: EndpointId, port: int, timeout_s: float, capacity_bytes: int) -> None:
        def connect() -> TCPStore:
            return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))

        self.endpoint = endpoint
        self.memory = DeviceMemory(endpoint, capacity_bytes)
        self.store = UnitStore(CPU, self.memory)
        self.communicators = Communicators(connect(), endpoint, CPU, timeout_s)
        self.executor = Executor(self.store, self.communicators, self.memory, endpoint)
        self.watch = AbortWatch(connect, endpoint, self.communicators.abort)
        self.watch.start()

    def seed(self, emu: Emu, state: StateSpec) -> None:
        shards = state.shards(emu.layout, emu.rank_of(self.endpoint))
        self.store.open(emu.unit, shards)
        for tensor, boxes in shards.items():
            for box in boxes:
                self.store.write(emu.unit, tensor.ref, box).copy_(whole(tensor)[box.slices((0,) * len(tensor.shape))])
                self.store.land(emu.unit, tensor.ref, box)

    def wrong_tensors(self, emu: Emu, state: StateSpec, origin: StateSpec) -> list[str]:
        """The tensors of a unit that are not, bit for bit, those of the oracle of `origin`."""
        rank = emu.rank_of(self.endpoint)
        held = {kind: self.store.tensors(emu.unit, kind) for kind in Kind}
        sources = {tensor.ref: tensor for tensor in origin.tensors}
        return [
            f"{tensor.ref} at {self.endpoint}"
            for tensor, boxes in state.shards(emu.layout, rank).items()
            if not torch.equal(
                held[tensor.kind][tensor.name], cut(tensor, boxes, whole(sources[tensor.ref]).to(DTYPES[tensor.dtype]))
            )
        ]

    def install(self, program: Program) -> Installation:
        return self.executor.install(program)

    def run(self, op: str) -> Completion:
        return self.executor.run(op)

    def digest(self, units: list[UnitId]) -> dict[UnitId, tuple[BoxDigest, ...]]:
        return self.executor.digest(units)

    def bind(self, units: set[UnitId], groups: set[GroupKey]) -> None:
        self.executor.bind(units, groups)

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

    def memory_use(self) -> tuple[dict[str, int], int]:
        return {**self.memory.by_category()}, sum(self.store.units().values())

    def open_handles(self) -> tuple[int, int]:
        """File descriptors and threads of this process."""
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


class Fleet:
    """Some workers and the store that they meet in."""

    def __init__(self, endpoints: Iterable[EndpointId], *, timeout_s: float = 30.0, capacity_bytes: int = CAPACITY_BYTES):
        self.endpoints = tuple(endpoints)
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._epoch = 0
        self._pipes: dict[EndpointId, Connection] = {}
        self._waiting: dict[EndpointId, deque[str]] = {endpoint: deque() for endpoint in self.endpoints}
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "tests.transport.fleet"])
        self.processes = {}
        for endpoint in self.endpoints:
            ours, theirs = context.Pipe()
            args = (theirs, endpoint, self.store.port, timeout_s, capacity_bytes)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self._pipes[endpoint], self.processes[endpoint] = ours, process
        for endpoint in self.endpoints:
            assert self._receive(endpoint) == (True, None)

    def close(self) -> None:
        for endpoint, pipe in self._pipes.items():
            # A process that was just killed may still look alive.
            with suppress(OSError):
                if self.processes[endpoint].is_alive():
                    pipe.send(None)
        for process in self.processes.values():
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in self._pipes.values():
            pipe.close()

    def next_epoch(self) -> int:
        """An epoch that was never used before; group names are never reused."""
        self._epoch += 1
        return self._epoch

    def post(self, endpoint: EndpointId, method: str, *args: Any) -> None:
        """Send a command; workers carry theirs out in order."""
        self._pipes[endpoint].send((method, args))
        self._waiting[endpoint].append(method)

    def answer(self, endpoint: EndpointId) -> Any:
        """The answer to the oldest command that waits for one; raises what the worker raised."""
        self._waiting[endpoint].popleft()
        fine, result = self._receive(endpoint)
        if not fine:
            raise result
        return result

    def failure(self, endpoint: EndpointId) -> Exception | None:
        """The error that the oldest waiting command ended in; None if it did not fail."""
        try:
            self.answer(endpoint)
        except Exception as error:
            return error
        return None

    def call(self, endpoint: EndpointId, method: str, *args: Any) -> Any:
        self.post(endpoint, method, *args)
        return self.answer(endpoint)

    def call_all(self, endpoints: Iterable[EndpointId], method: str, *args: Any) -> dict[EndpointId, Any]:
        """The same command to several workers at once."""
        return self.each(dict.fromkeys(endpoints, args), method)

    def each(self, commands: Mapping[EndpointId, tuple[Any, ...]], method: str) -> dict[EndpointId, Any]:
        """One command with arguments of their own to several workers at once."""
        for endpoint, args in commands.items():
            self.post(endpoint, method, *args)
        return {endpoint: self.answer(endpoint) for endpoint in commands}

    def seed(self, emus: Iterable[Emu], state: StateSpec) -> None:
        for emu in emus:
            self.call_all(emu.endpoints, "seed", emu, state)

    def wrong_tensors(self, emus: Iterable[Emu], state: StateSpec, origin: StateSpec) -> list[str]:
        found = [self.call_all(emu.endpoints, "wrong_tensors", emu, state, origin) for emu in emus]
        return [name for answers in found for names in answers.values() for name in names]

    def digests(self, emus: Iterable[Emu], state: StateSpec) -> list[Digest]:
        """The logical digest of each unit."""
        shapes = {tensor.ref: tensor.shape for tensor in state.tensors}
        taken = [(emu.unit, self.call_all(emu.endpoints, "digest", [emu.unit])) for emu in emus]
        return [logical_digest((b for held in t.values() for b in held[unit]), shapes) for unit, t in taken]

    def install(self, ops: Iterable[Op], states: Mapping[str, StateSpec], epoch: int) -> dict[EndpointId, Installation]:
        ops = tuple(ops)
        members = sorted({endpoint for op in ops for endpoint in op.members})
        return self.each({e: (program_for(e, epoch, ops, (), states),) for e in members}, "install")

    def run_dag(self, transition: Transition) -> int:
        """Every operation as soon as those before it are done, submitted in the one global order; returns bytes received."""
        done: set[str] = set()
        members: dict[str, set[EndpointId]] = {}
        received = 0

        def drain() -> int:
            pipes = {self._pipes[e]: e for e, queue in self._waiting.items() if queue}
            ready = wait(list(pipes), timeout=ANSWER_S)
            assert ready, f"nothing heard for {ANSWER_S} s of {members}"
            total = 0
            for pipe in ready:
                endpoint = pipes[pipe]  # type: ignore[index]
                op = order[endpoint].popleft()
                total += self.answer(endpoint).bytes_received
                members[op].discard(endpoint)
                if not members[op]:
                    done.add(op)
            return total

        order: dict[EndpointId, deque[str]] = {endpoint: deque() for endpoint in self.endpoints}
        for op in transition.ops:
            while not set(op.after) <= done:
                received += drain()
            members[op.id] = set(op.members)
            for endpoint in op.members:
                order[endpoint].append(op.id)
                self.post(endpoint, "run", op.id)
        while any(members.values()):
            received += drain()
        return received

    def bind(self, emus: Iterable[Emu], groups: set[GroupKey] | None = None) -> None:
        self.call_all(self.endpoints, "bind", {emu.unit for emu in emus}, groups or set())

    def _receive(self, endpoint: EndpointId) -> Any:
        assert self._pipes[endpoint].poll(ANSWER_S), f"{endpoint} did not answer within {ANSWER_S} s"
        return self._pipes[endpoint].recv()


def _serve(pipe: Connection, endpoint: EndpointId, port: int, timeout_s: float, capacity_bytes: int) -> None:
    torch.set_num_threads(1)
    worker = Worker(endpoint, port, timeout_s, capacity_bytes)
    pipe.send((True, None))
    while (command := pipe.recv()) is not None:
        method, args = command
        try:
            pipe.send((True, getattr(worker, method)(*args)))
        except Exception as error:
            pipe.send((False, error))
