"""`nereus run`: launch a job, show it, and keep what it came to in a folder of its own.

runs/<job>-<time>/  job.yaml  events.jsonl  summary.json

A Ray job is submitted with `ray job submit ... -- <interpreter> -m nereus run JOB`: it runs on the cluster that runs it, and
its folder is below the user's home, since Ray throws the job's working directory away. Where a controller lives on the
cluster, the job is handed over to it (controller.py), and its folder is the controller's.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nereus.cli.controller import hand_over
from nereus.cli.display import Display
from nereus.cli.resume import checkpoint_to_resume
from nereus.control.checkpoint import Checkpoint
from nereus.errors import UserError
from nereus.runtime.event_log import event_dict
from nereus.runtime.summary import Summary
from nereus.spec.job import Job
from nereus.spec.loading import check_cores, load_job, with_availability

PRIVATE = "local"
"""The address of no cluster: one of the command's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command."""

    steps: int | None = None
    address: str | None = None
    run_dir: Path | None = None
    availability: Path | None = None
    resume: Path | None = None
    detach: bool = False
    as_json: bool = False


def run_job(path: Path, asked: Asked) -> None:
    """Run the job file to its end, or hand it over. Raises UserError before it starts, NereusError if the run fails."""
    from actors.connection import cluster_of_this_job, connected

    submitted = cluster_of_this_job()
    address = None if asked.address == PRIVATE else asked.address or submitted
    job = load_job(path)
    if asked.availability is not None:
        job = with_availability(job, asked.availability)
    if asked.steps is not None:
        job = job.with_steps(asked.steps)
    if address is None:
        check_cores(job, num_cores())
    checkpoint = checkpoint_to_resume(job, asked.resume) if asked.resume is not None else None
    display = Display(job, quiet=asked.as_json)
    with connected(job.cluster, address):
        if address is not None and hand_over(job, checkpoint, asked, display):
            return
        if asked.detach:
            raise UserError("--detach: no controller lives on this cluster; start one with `nereus controller start`")
        folder = _new_folder(asked.run_dir or (Path.home() / ".nereus" / "runs" if submitted else Path("runs")), job.name)
        shutil.copy(path, folder / "job.yaml")
        summary = _watch(job, folder, checkpoint, display, is_private=address is None)
    (folder / "summary.json").write_text(json.dumps(summary.as_dict(), indent=2) + "\n")
    if asked.as_json:
        print(json.dumps(summary.as_dict()))  # noqa: T201


def num_cores() -> float:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _watch(job: Job, folder: Path, checkpoint: Checkpoint | None, display: Display, *, is_private: bool) -> Summary:
    from actors.launch import alone, first_weights

    weights = first_weights(job)
    with display, (folder / "events.jsonl").open("w") as log:
        display.say(f"{job.name}: {job.steps} steps on {job.cluster.num_devices} devices, run folder {folder}")
        if checkpoint is not None:
            display.say(f"it goes on after step {checkpoint.step}, from {checkpoint.folder}")
        with alone(job, folder, weights, checkpoint, is_private=is_private) as run:
            if run.api_url is not None:
                display.say(f"API at {run.api_url}; `nereus status` shows the job")
            for event in run.watch():
                log.write(json.dumps(event_dict(event)) + "\n")
                log.flush()
                display.show(event)
            summary = run.summary()
        display.finish(summary)
    return summary


def _new_folder(run_dir: Path, name: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{i}" for i in range(1, 100))):
        folder = run_dir / f"{name}-{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder.resolve()
    raise FileExistsError(f"{run_dir}: 100 runs of {name} in one second")
