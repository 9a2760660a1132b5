"""How long rows, frontier and search take together, on one core and warm, and how much memory the process has then."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks.planning.roofline import Case, ppo
from nereus.planner.found import Report
from nereus.planner.solve import solve

SEQUENCES = {64: (512,), 1024: (4096,), 16384: (65_536, 46_080)}
"""Sequences of a step by devices; 46,080 has 100 divisors and so as many DP degrees."""

UNEVEN = (8,) * 4 + (6,) * 4 + (3,) * 2
"""62 devices on nodes of three sizes."""


@dataclass(frozen=True)
class Timed:
    """One case."""

    devices: int
    case: Case
    seconds: float
    """Median of the repeats, by the clock on the wall."""
    fastest_s: float
    cpu_seconds: float
    """Median, of this process: less than `seconds` where others have the core."""
    step_seconds: float | None
    report: Report
    plain: bool
    """Even nodes of one kind."""


def run(repeats: int, announce: Callable[[str], None]) -> list[Timed]:
    """All cases: each pool size roomy and tight, with short and long responses, sync and async; uneven nodes; two kinds."""
    cases = [
        (devices, Case((8,) * (devices // 8), sequences, tokens, capacity, asynchronous), True)
        for devices, batches in SEQUENCES.items()
        for sequences in batches
        for capacity in (72e9, 36e9)
        for tokens in (2048, 8192)
        for asynchronous in (False, True)
    ]
    for asynchronous in (False, True):
        cases.append((62, Case(UNEVEN, 512, 8192, 36e9, asynchronous), False))
        cases.append((64, Case((8,) * 8, 512, 2048, 72e9, asynchronous, slow_nodes=4), False))
    timed = []
    for devices, case, plain in cases:
        timed.append(_timed(devices, case, repeats, plain=plain))
        last = timed[-1]
        announce(
            f"{case.name}, {case.sequences} sequences: {last.seconds * 1e3:.1f} ms ({last.fastest_s * 1e3:.1f} at best), "
            f"{last.report.rows} rows, frontier {last.report.frontier_rows}, {last.report.tree_nodes} tree nodes, "
            f"{last.report.leaves} leaves, L_step {last.step_seconds}"
        )
    return timed


def peak_rss_mb() -> float:
    """Of this process so far, interpreter and numpy included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _timed(devices: int, case: Case, repeats: int, *, plain: bool) -> Timed:
    wall, cpu = [], []
    solve(ppo(case))  # warm: the grid of legal combinations and the imports are there
    for _ in range(repeats):
        started, busy = time.perf_counter(), time.process_time()
        solutions, report = solve(ppo(case))
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - busy)
    best = solutions[0].step_seconds if solutions else None
    return Timed(devices, case, median(wall), min(wall), median(cpu), best, report, plain)
