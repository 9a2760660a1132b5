"""The plan search: one candidate per model-stage, the sum of latencies smallest, within memory (Eq. (1)).

A synchronous job runs its model-stages one after the other, so each may use the whole pool, and those that share a device
share its memory: the states of all, and the live bytes of the one that computes. Every candidate is placed from the first
device of the pool on, so the first device carries all of them and decides.

    for each bound on live bytes: fold the model-stages into a frontier of (state bytes, seconds), read it at cap - bound

This is exact for that placement: the fold keeps every pair that is not dominated, and K plans need the K best at each state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from nereus.emu.plan import Plan
from nereus.planner.candidates import Candidate, candidates
from nereus.planner.request import SearchRequest


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan that the search found, and what it predicts."""

    chosen: tuple[Candidate, ...]
    seconds: float
    """L_step: the model-stages and the weight sync."""
    peak_bytes: int
    """Mem_peak: of the fullest device."""

    @property
    def shape(self) -> tuple[tuple[str, str, int], ...]:
        """Layout and DP degree of every model-stage: plans that differ in micro-batch only are near-duplicates."""
        return tuple((c.plan.stage, str(c.plan.layout), c.plan.dp) for c in self.chosen)

    def plan(self, epoch: int = 0) -> Plan:
        """The plan on the first devices of the pool, not yet placed on what is there."""
        return Plan(epoch, {c.plan.stage: c.plan for c in self.chosen})


@dataclass(frozen=True, slots=True)
class _Partial:
    """Candidates for the first model-stages of the fold."""

    state_bytes: int
    seconds: float
    chosen: tuple[Candidate, ...]


def search(request: SearchRequest, top: int = 1) -> tuple[Choice, ...]:
    """The `top` best plans that differ in some layout or DP degree, fastest first; empty when none fits."""
    tables = [candidates(request, stage) for stage in sorted(request.states)]
    found: dict[tuple[tuple[str, str, int], ...], Choice] = {}
    for bound in sorted({c.live_bytes for table in tables for c in table}):
        allowed = [_fastest_by_shape([c for c in table if c.live_bytes <= bound]) for table in tables]
        for partial in _fold(request, allowed, request.usable_bytes - bound, top):
            choice = _choice(partial)
            known = found.get(choice.shape)
            if known is None or _rank(choice) < _rank(known):
                found[choice.shape] = choice
    return tuple(islice(sorted(found.values(), key=_rank), top))


def _fold(request: SearchRequest, tables: Sequence[Sequence[Candidate]], room: float, top: int) -> list[_Partial]:
    """The `top` fastest combinations whose states fit in `room`, by dynamic programming over the model-stages."""
    partials = [_Partial(0, 0.0, ())]
    for table in tables:
        grown = [
            _Partial(p.state_bytes + c.state_bytes, p.seconds + _seconds(request, c), (*p.chosen, c))
            for p in partials
            for c in table
            if p.state_bytes + c.state_bytes <= room
        ]
        partials = _skyline(grown, top)
    return sorted(partials, key=lambda p: p.seconds)[:top]


def _skyline(partials: list[_Partial], depth: int) -> list[_Partial]:
    """Partials with fewer than `depth` others that are at least as fast and as small."""
    partials.sort(key=lambda p: (p.seconds, p.state_bytes))
    kept: list[_Partial] = []
    sizes: list[int] = []
    for partial in partials:
        at = bisect_right(sizes, partial.state_bytes)
        if at < depth:
            kept.append(partial)
            sizes.insert(at, partial.state_bytes)
    return kept


def _seconds(request: SearchRequest, candidate: Candidate) -> float:
    """What a candidate adds to the step: its latency, and for generation the weight sync to its replicas."""
    sync = request.cost.sync_seconds(candidate.plan.dp) if candidate.plan.stage == request.generates else 0.0
    return candidate.seconds + sync


def _fastest_by_shape(found: Sequence[Candidate]) -> list[Candidate]:
    """Of each layout and DP degree the fastest micro-batch: the state is the same, and all are within the bound."""
    best: dict[tuple[object, int], Candidate] = {}
    for candidate in found:
        best.setdefault((candidate.plan.layout, candidate.plan.dp), candidate)
    return list(best.values())


def _choice(partial: _Partial) -> Choice:
    peak = partial.state_bytes + max(c.live_bytes for c in partial.chosen)
    return Choice(partial.chosen, partial.seconds, peak)


def _rank(choice: Choice) -> tuple[float, int, tuple[tuple[str, str, int], ...]]:
    """Fastest first; ties by fewer devices, then by shape."""
    return choice.seconds, sum(c.num_devices for c in choice.chosen), choice.shape
