"""`nereus plan` of a job file: which layout for how many devices, how fast and how much memory, before anything starts.

Rates are the conservative ones of unmeasured devices: the order of plans is what counts, and a run measures the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from nereus.cli.plan import device_counts
from nereus.cli.tables import show_table
from nereus.errors import UserError
from nereus.planner.native import NativePricing
from nereus.planner.pricing import Devices, Lengths
from nereus.planner.search import Choice, search
from nereus.rl.describe import describe
from nereus.spec.job import Job
from nereus.spec.loading import load_job

MIB = 2**20


def plan_job(path: Path, gpus: str | None, top: int, *, as_json: bool) -> None:
    """Search the best plans of a job file for each number of devices, and print them."""
    job = load_job(path)
    found = {
        count: best_plans(job, count, top) for count in device_counts(gpus, job.cluster.num_devices, "the job's cluster has")
    }
    if as_json:
        print(json.dumps({"job": job.name, "plans": [_as_dict(n, c) for n, cs in found.items() for c in cs]}))  # noqa: T201
        return
    console = Console()
    for count, choices in found.items():
        if choices:
            _show(console, count, choices)
        else:
            console.print(f"{count} devices: no plan fits in memory")


def best_plans(job: Job, num_devices: int, top: int) -> tuple[Choice, ...]:
    """The `top` best plans on the first devices of the job's cluster, at its longest responses."""
    config = describe(job)
    if job.cluster.device.memory is None:
        raise UserError("cluster.device.memory: a plan needs the memory of a device; declare it, such as 80GiB")
    longest = float(job.workload.max_response_tokens)
    pool = Devices(tuple(range(num_devices)), config.node_of)
    pricing = NativePricing.of(job, config.states, config.generates)
    return search(pricing.request(pool, Lengths(longest, longest)), top)


def _as_dict(count: int, choice: Choice) -> dict[str, Any]:
    return {
        "devices": count,
        "l_step_seconds": choice.seconds,
        "peak_bytes": choice.peak_bytes,
        "stages": {
            c.plan.stage: {
                "tp": c.plan.layout.tp,
                "pp": c.plan.layout.pp,
                "dp": c.plan.dp,
                "micro_batch": c.plan.micro_batch,
                "recompute": c.plan.recompute,
                "seconds": c.seconds,
                "state_bytes": c.state_bytes,
                "live_bytes": c.live_bytes,
            }
            for c in choice.chosen
        },
    }


def _show(console: Console, count: int, choices: Sequence[Choice]) -> None:
    rows = []
    for rank, choice in enumerate(choices, 1):
        cells = [f"{c.plan.layout} dp{c.plan.dp} {c.plan.batching} {c.seconds:.2f} s" for c in choice.chosen]
        rows.append((str(rank), f"{choice.seconds:.2f}", f"{choice.peak_bytes / MIB:.1f}", *cells))
    stages = (c.plan.stage for c in choices[0].chosen)
    show_table(console, f"{count} devices", ("", "step s", "peak MiB", *stages), rows)
