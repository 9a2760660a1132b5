"""One run: every pair of layouts, every contestant, a few times, one after the other.

Contestants take turns within a repeat, so that what else happens on the machine meets them all.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from benchmarks.moving.cluster import Cluster, Moved
from benchmarks.moving.contest import Job
from benchmarks.moving.live import PlannedPair, measured_state, plan_pair
from benchmarks.moving.shapes import Pair, Shape
from benchmarks.moving.state import State, missing_bytes

CONTESTANTS = ("nereus", "dcp", "ucp", "megatron", "raw_gloo")
"""In the order of their turns: Nereus, PyTorch DCP, DeepSpeed universal checkpointing, Megatron-Core, raw Gloo."""

WARM_UP: Pair = (Shape(4, 1, 1), Shape(1, 1, 4))
"""Moved once by everybody before anything is measured: imports, connections, the heap of every rank, pages of /dev/shm."""


@dataclass(frozen=True, slots=True)
class Bout:
    """All that was measured of one pair."""

    source: Shape
    target: Shape
    bytes_moved: int
    bytes_lower_bound: int
    plan_ms: float
    digest_s: float
    peak_extra_bytes: int
    wrong: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)
    """Median of the repeats, by contestant; those that cannot run are left out."""


def run(cluster: Cluster, pairs: Iterable[Pair], repeats: int, announce: Callable[[Bout], None]) -> list[Bout]:
    """Measure the pairs; each is announced as soon as it is known."""
    state, bouts = measured_state(), list[Bout]()
    _bout(cluster, state, WARM_UP, 1, 0)
    for number, pair in enumerate(pairs, start=1):
        bouts.append(_bout(cluster, state, pair, repeats, 2 * number))
        announce(bouts[-1])
    return bouts


def _bout(cluster: Cluster, state: State, pair: Pair, repeats: int, epoch: int) -> Bout:
    source, target = pair
    gc.collect()
    planned = plan_pair(source, target, epoch)
    jobs = {rank: Job(rank, source, target, state, "", work, planned.links) for rank, work in enumerate(planned.works)}
    moves: dict[str, list[Moved]] = defaultdict(list)
    chosen = [name for name in CONTESTANTS if name not in cluster.absent and (planned.links or name != "raw_gloo")]
    for _ in range(repeats):
        for name in chosen:
            moves[name].append(cluster.move(name, jobs))
    _check_peers(pair, moves)
    ours = moves["nereus"]
    return Bout(
        source,
        target,
        planned.bytes_moved,
        _lower_bound(state, planned),
        planned.plan_ms,
        median(moved.digest_s for moved in ours),
        max(moved.peak_extra_bytes for moved in ours),
        tuple(sorted({key for moved in ours for key in moved.wrong})),
        {name: median(moved.seconds for moved in found) for name, found in moves.items()},
    )


def _lower_bound(state: State, planned: PlannedPair) -> int:
    return sum(missing_bytes(state, old, new) for old, new in zip(planned.old, planned.new, strict=True))


def _check_peers(pair: Pair, moves: dict[str, list[Moved]]) -> None:
    """A peer that moved something wrong makes every comparison with it void."""
    for name, found in moves.items():
        wrong = [key for moved in found for key in moved.wrong]
        if name != "nereus" and wrong:
            raise RuntimeError(f"{name}, {pair[0]} -> {pair[1]}: {len(wrong)} tensors arrived wrong, such as {wrong[0]}")
