"""Carries a transition through the endpoint port: install, run the DAG, prove, commit.

    digest before -> install programs -> run ops as their predecessors end -> digest after == before -> held Destroys -> bind

Nothing is committed before the digests agree. A Destroy that no other operation waits for is held back until then, so that
up to that point the old units stand intact. An operation that fails, or an endpoint that dies, ends it with an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nereus.emu.digest import BoxDigest, Digest, logical_digest
from nereus.emu.unit import Emu
from nereus.errors import DigestMismatch, EndpointLost, TransitionFailed
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.runtime.facts import Committed, DigestsTaken, EndpointDied, Fact, Installed, OpCompleted, OpFailed
from nereus.runtime.ports import EndpointPort
from nereus.transition.ops import GroupKey, Op, Program, Transition

FACT_TIMEOUT_S = 120.0
"""Seconds without any fact after which a transition is given up: far above any set-up, far below a person's patience."""


ROOT_CAUSE_WAIT_S = 2.0
"""Seconds of silence, after a failure, after which no death will explain it: one is noticed within a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a transition came to."""

    bytes_moved: int
    """Bytes that crossed between endpoints."""
    seconds: float
    """Set-up and movement, digests left out: the paper's transition cost."""
    setup_s: float
    digest_s: float
    groups_made: int
    groups_reused: int
    peak_bytes: int
    """Highest use of any device's memory: old units, new units and buffers together."""
    digest_equal: bool


@dataclass(slots=True)
class _Tally:
    """What facts add up to."""

    setup_s: float = 0.0
    groups_made: int = 0
    groups_reused: int = 0
    bytes_received: int = 0
    peak_bytes: int = 0
    digests: dict[UnitId, list[BoxDigest]] = field(default_factory=dict)


class CarryOut:
    """One transition; used once."""

    def __init__(self, endpoints: EndpointPort, states: Mapping[str, StateSpec]) -> None:
        self._endpoints, self._states = endpoints, states
        self._tally = _Tally()

    def run(
        self,
        transition: Transition,
        programs: Sequence[Program],
        before: Iterable[Emu],
        bound: tuple[Emu, ...],
        keep: frozenset[GroupKey],
    ) -> Outcome:
        """Carry it out. `before` are the EMUs that change, `bound` all EMUs of the job after it.

        Raises DigestMismatch, EndpointLost or TransitionFailed; then nothing was committed.
        """
        digest_began = time.perf_counter()
        old = self._digests(before)
        began = time.perf_counter()
        self.install(programs)
        self._run_dag(transition.moving)
        moved = time.perf_counter()
        new = self._digests(transition.result)
        _check_equal(old, new)
        proved = time.perf_counter()
        self._run_dag(transition.held)
        self.bind(programs[0].epoch, bound, [program.endpoint for program in programs], keep)
        return Outcome(
            bytes_moved=self._tally.bytes_received,
            seconds=(moved - began) + (time.perf_counter() - proved),
            setup_s=self._tally.setup_s,
            digest_s=(began - digest_began) + (proved - moved),
            groups_made=self._tally.groups_made,
            groups_reused=self._tally.groups_reused,
            peak_bytes=self._tally.peak_bytes,
            digest_equal=True,
        )

    def install(self, programs: Sequence[Program]) -> None:
        """Have every endpoint make its communicators and keep its operations."""
        for program in programs:
            self._endpoints.install(program)
        waiting = {program.endpoint for program in programs}
        while waiting:
            fact = self._next("installing", waiting)
            if isinstance(fact, Installed):
                waiting.discard(fact.endpoint)
                self._tally.setup_s = max(self._tally.setup_s, fact.setup_s)
                self._tally.groups_made += fact.groups_made
                self._tally.groups_reused += fact.groups_reused

    def bind(self, epoch: int, bound: tuple[Emu, ...], endpoints: Sequence[EndpointId], keep: frozenset[GroupKey]) -> None:
        """Commit: every endpoint serves `bound` from now on."""
        self._endpoints.bind(epoch, bound, endpoints, keep)
        waiting = set(endpoints)
        while waiting:
            fact = self._next("committing", waiting)
            if isinstance(fact, Committed):
                waiting.discard(fact.endpoint)
                self._tally.peak_bytes = max(self._tally.peak_bytes, fact.peak_bytes)

    def _run_dag(self, ops: Sequence[Op]) -> None:
        """Run operations as soon as their predecessors have completed on all members, in submission order."""
        inside = {op.id for op in ops}
        unstarted, running, done = list(ops), dict[str, set[EndpointId]](), set[str]()
        while unstarted or running:
            for op in list(unstarted):
                if all(before in done or before not in inside for before in op.after):
                    unstarted.remove(op)
                    running[op.id] = set(op.members)
                    self._endpoints.run(op)
            fact = self._next("moving state", running)
            if isinstance(fact, OpCompleted):
                self._tally.bytes_received += fact.bytes_received
                running[fact.op].discard(fact.endpoint)
                if not running[fact.op]:
                    del running[fact.op]
                    done.add(fact.op)

    def _digests(self, emus: Iterable[Emu]) -> dict[UnitId, Digest]:
        """The logical digest of each unit; its endpoints' sums combined."""
        units = tuple(emus)
        self._endpoints.digest(units)
        waiting = {endpoint for emu in units for endpoint in emu.endpoints}
        self._tally.digests.clear()
        while waiting:
            fact = self._next("taking digests", waiting)
            if isinstance(fact, DigestsTaken):
                waiting.discard(fact.endpoint)
                for unit, boxes in fact.digests.items():
                    self._tally.digests.setdefault(unit, []).extend(boxes)
        return {
            emu.unit: logical_digest(
                self._tally.digests[emu.unit], {t.ref: t.shape for t in self._states[emu.stage].tensors}
            )
            for emu in units
        }

    def _next(self, doing: str, waiting: Iterable[object]) -> Fact:
        fact = self._endpoints.next_fact(FACT_TIMEOUT_S)
        if fact is None:
            names = ", ".join(sorted(map(str, waiting)))
            raise TransitionFailed(f"{doing}: nothing heard for {FACT_TIMEOUT_S:.0f} s; still waiting for {names}")
        if isinstance(fact, EndpointDied):
            raise EndpointLost(fact.endpoint, doing)
        if isinstance(fact, OpFailed):
            self._raise_if_one_died(doing)
            raise TransitionFailed(f"{doing}: {fact.op} failed on {fact.endpoint}: {fact.error}") from fact.error
        return fact

    def _raise_if_one_died(self, doing: str) -> None:
        """A peer's broken connection is heard of before the death that broke it: wait for that a moment."""
        while (fact := self._endpoints.next_fact(ROOT_CAUSE_WAIT_S)) is not None:
            if isinstance(fact, EndpointDied):
                raise EndpointLost(fact.endpoint, doing)


def _check_equal(old: Mapping[UnitId, Digest], new: Mapping[UnitId, Digest]) -> None:
    """Every unit of a model-stage, before and after, holds the same logical state."""
    first: dict[str, tuple[UnitId, Digest]] = {}
    for unit, digest in [*old.items(), *new.items()]:
        known, expected = first.setdefault(unit.stage, (unit, digest))
        if digest != expected:
            wrong = sorted(str(ref) for ref in expected if digest.get(ref) != expected[ref])
            raise DigestMismatch(
                f"{unit} differs from {known} in {len(wrong)} tensors, first {wrong[0]}; nothing was committed"
            )
