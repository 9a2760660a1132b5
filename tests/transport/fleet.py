"""Processes that each serve one endpoint, and the store that they meet in.

test -> pipe -> worker (one thread, commands in order)          TCPStore in the test's process
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from torch.distributed import TCPStore

from nereus.emu.digest import Digest, logical_digest
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Op, Transition, program_for
from nereus.transport.abort import request_abort
from nereus.transport.executor import Installation
from tests.transport.worker import serve

CAPACITY_BYTES = 1 << 30
TIMEOUT_S = 30.0
"""Of every wait for a peer."""

ANSWER_S = 60.0
"""A generous bound for 'does not hang'; far above anything that a test waits for, such as a wait that times out."""


class Fleet:
    """Some workers and the store that they meet in."""

    def __init__(
        self, endpoints: Iterable[EndpointId], *, timeout_s: float = TIMEOUT_S, capacity_bytes: int = CAPACITY_BYTES
    ):
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
            process = context.Process(target=serve, args=args, daemon=True)
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

    # Commands

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

    def settle(self) -> None:
        """End what a failed test has left running, so that it fails alone."""
        busy = [endpoint for endpoint, queue in self._waiting.items() if queue]
        request_abort(self.store, busy)
        for endpoint in busy:
            while self._waiting[endpoint]:
                self.failure(endpoint)

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

    # Units

    def seed(self, emus: Iterable[Emu], state: StateSpec, *, blank: bool = False) -> None:
        for emu in emus:
            self.call_all(emu.endpoints, "seed", emu, state, blank)

    def wrong_tensors(self, emus: Iterable[Emu], state: StateSpec, origin: StateSpec) -> list[str]:
        found = [self.call_all(emu.endpoints, "wrong_tensors", emu, state, origin) for emu in emus]
        return [name for answers in found for names in answers.values() for name in names]

    def digests(self, emus: Iterable[Emu], state: StateSpec) -> list[Digest]:
        """The logical digest of each unit; of all together, where they share their optimizer state."""
        emus = tuple(emus)
        shapes = {tensor.ref: tensor.shape for tensor in state.tensors}
        mine: dict[EndpointId, list[UnitId]] = {}
        for emu in emus:
            for endpoint in emu.endpoints:
                mine.setdefault(endpoint, []).append(emu.unit)
        taken = self.each({endpoint: (units,) for endpoint, units in mine.items()}, "digest").values()
        boxes = {emu.unit: [box for held in taken for box in held.get(emu.unit, ())] for emu in emus}
        if any(emu.optimizer.parts > 1 for emu in emus):
            return [logical_digest((box for held in boxes.values() for box in held), shapes)]
        return [logical_digest(held, shapes) for held in boxes.values()]

    # Transitions

    def install(
        self, ops: Iterable[Op], states: Mapping[str, StateSpec], epoch: int, timeout_s: float = TIMEOUT_S
    ) -> dict[EndpointId, Installation]:
        ops = tuple(ops)
        members = sorted({endpoint for op in ops for endpoint in op.members})
        return self.each({e: (program_for(e, epoch, ops, (), states, timeout_s),) for e in members}, "install")

    def run_dag(self, transition: Transition) -> int:
        """Every operation as soon as those before it are done, in the one global order; returns bytes received."""
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
        for op in (*transition.moving, *transition.held):
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
