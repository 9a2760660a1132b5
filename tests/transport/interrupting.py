"""Streams that are broken on purpose: one member's store fails once, the others are aborted, and all groups are made again.

start -> fault at a bucket on one member -> abort of all -> groups again -> the same operation again, or its undoing
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any

from nereus.emu.digest import Digest
from nereus.emu.unit import Emu
from nereus.errors import StoreError
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.ops import Op, Stream, Transition
from nereus.transport.abort import await_aborts, request_abort
from tests.builders import STAGE, make_emus
from tests.transport.carrying import Mode, plan_of, transition_to
from tests.transport.faulty_store import Fault, Verb
from tests.transport.fleet import Fleet
from tests.transport.models import mixed_state

ABORT_S = 10.0
"""A generous bound for an abort, which takes about 10 ms."""

MISSED_S = 10.0
"""Of every wait for a peer: about one abort in a thousand misses a send that is under way, which then ends only so."""


def break_and_mend(fleet: Fleet, op: Op, culprit: EndpointId, others: type | UnionType = RuntimeError | StoreError) -> None:
    """Run an operation in which `culprit` fails as planned, abort all members, and make their groups again."""
    fired = fleet.call(culprit, "faults_fired")
    for endpoint in op.members:
        fleet.post(endpoint, "run", op.id)
    assert isinstance(fleet.failure(culprit), OSError)
    assert fleet.call(culprit, "faults_fired") == fired + 1
    abort_and_mend(fleet, op, [endpoint for endpoint in op.members if endpoint != culprit], others)


def abort_and_mend(
    fleet: Fleet, op: Op, running: Iterable[EndpointId], expected: type | UnionType = RuntimeError | StoreError
) -> None:
    """Abort all members of an operation, and make its groups again; those that run it must fail as expected."""
    requests = request_abort(fleet.store, op.members)
    failures = {endpoint: fleet.failure(endpoint) for endpoint in running}
    assert await_aborts(fleet.store, requests, ABORT_S) == frozenset()
    assert {endpoint: error for endpoint, error in failures.items() if not isinstance(error, expected)} == {}
    tag = f"again{fleet.next_epoch()}"
    fleet.each({e: (sorted(g for g in op.groups if e in g.members), tag) for e in op.members}, "ensure")


@dataclass(frozen=True)
class Streaming:
    """A transition that is installed on a fleet, and its first operation, a stream."""

    fleet: Fleet
    state: StateSpec
    current: tuple[Emu, ...]
    transition: Transition
    before: list[Digest]

    @classmethod
    def installed(cls, fleet: Fleet, source: str, target: str, bucket_bytes: int = 4096) -> Streaming:
        state, epoch = mixed_state(), fleet.next_epoch()
        current = make_emus(source, epoch=epoch)
        fleet.seed(current, state)
        mode = Mode(stream=True, bucket_bytes=bucket_bytes)
        transition = transition_to(current, plan_of(current, target), state, fleet.next_epoch(), mode)
        before = fleet.digests(current, state)
        fleet.call_all(fleet.endpoints, "reset_peak")
        fleet.install(transition.ops, {STAGE: state}, fleet.next_epoch(), MISSED_S)
        return cls(fleet, state, current, transition, before)

    @property
    def op(self) -> Op:
        return self.transition.ops[0]

    @property
    def stream(self) -> Stream:
        assert self.op.stream is not None
        return self.op.stream

    @property
    def ended(self) -> tuple[Emu, ...]:
        """The units of which the stream frees something."""
        units = {site.unit for site in self.op.frees}
        return tuple(emu for emu in self.current if emu.unit in units)

    def bytes_from(self, bucket: int) -> int:
        """Bytes that the stream moves from a bucket on."""
        return sum(self.op.of_tensors(refs).num_bytes for refs in self.stream.buckets[bucket:])

    def run(self, op: Op | None = None) -> int:
        """Run the stream, or another operation, on all members; returns bytes received."""
        op = op or self.op
        done = self.fleet.call_all(op.members, "run", op.id)
        return sum(completion.bytes_received for completion in done.values())

    def run_the_rest(self) -> None:
        """Run the other operations, which do not wait for this one."""
        self.fleet.run_dag(Transition(self.transition.ops[1:], self.transition.result))

    def interrupt(self, verb: Verb, bucket: int) -> None:
        """Run the stream until one member fails there, abort the others, and make all groups again."""
        culprit, fault = next(self._faults(verb, bucket))
        self.fleet.call(culprit, "fail_once", fault)
        ended_before = verb == "release" and bucket == len(self.stream.buckets) - 1
        break_and_mend(self.fleet, self.op, culprit, type(None) if ended_before else RuntimeError | StoreError)

    def _faults(self, verb: Verb, bucket: int) -> Iterator[tuple[EndpointId, Fault]]:
        """Where a call of this kind comes in a bucket; what changes hands does not land."""
        refs = frozenset(self.stream.buckets[bucket])
        handed = {(*move.target, tensor.ref) for move in self.op.handovers for tensor in move.tensors}
        if verb == "release":
            yield from ((site.endpoint, Fault(verb, site.unit, min(refs))) for site in self.op.frees)
        for emu in self.op.makes:
            for rank, endpoint in enumerate(emu.endpoints):
                shards = self.state.shards(emu.layout, rank, emu.optimizer)
                held = sorted(t.ref for t in shards if t.ref in refs and (endpoint, emu.unit, t.ref) not in handed)
                if held and verb != "release":
                    yield endpoint, Fault(verb, emu.unit, held[-1])

    def units_held(self) -> dict[EndpointId, set[Any]]:
        """The units that are open on each member."""
        return {e: set(units) for e, units in self.fleet.call_all(self.op.members, "units").items()}

    def units_made(self) -> dict[EndpointId, set[Any]]:
        """The units that the stream makes on each member."""
        return {e: {emu.unit for emu in self.op.makes if e in emu.endpoints} for e in self.op.members}
