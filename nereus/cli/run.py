"""`nereus run`: launch a job, show it, and keep what it came to in a folder of its own.

runs/<job>-<time>/  job.yaml  events.jsonl  summary.json

A Ray job is submitted with `ray job submit ... -- <interpreter> -m nereus run JOB`: it runs on the cluster that runs it, and
its folder is below the user's home, since Ray throws the job's working directory away.
"""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from nereus.cli.display import Display, event_dict
from nereus.cli.resume import checkpoint_to_resume
from nereus.control.checkpoint import Checkpoint
from nereus.runtime.summary import Summary
from nereus.spec.job import Job
from nereus.spec.loading import check_cores, load_job, with_availability

PRIVATE = "local"
"""The address of no cluster: one of the command's own."""


def run_job(
    path: Path,
    steps: int | None,
    address: str | None,
    run_dir: Path | None,
    availability: Path | None,
    resume: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run the job file to its end. Raises UserError before anything starts, NereusError if the run fails."""
    from actors.cluster import cluster_of_this_job

    submitted = cluster_of_this_job()
    address = None if address == PRIVATE else address or submitted
    run_dir = run_dir or (Path.home() / ".nereus" / "runs" if submitted else Path("runs"))
    job = load_job(path)
    if availability is not None:
        job = with_availability(job, availability)
    if steps is not None:
        job = job.with_steps(steps)
    if address is None:
        check_cores(job, num_cores())
    checkpoint = checkpoint_to_resume(job, resume) if resume is not None else None
    folder = _new_folder(run_dir, job.name)
    shutil.copy(path, folder / "job.yaml")
    summary = _watch(job, address, folder, checkpoint, Display(job, quiet=as_json))
    (folder / "summary.json").write_text(json.dumps(summary.as_dict(), indent=2) + "\n")
    if as_json:
        print(json.dumps(summary.as_dict()))  # noqa: T201


def num_cores() -> float:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _watch(job: Job, address: str | None, folder: Path, checkpoint: Checkpoint | None, display: Display) -> Summary:
    from actors.launch import launched

    weights = _weights(job)
    with display, (folder / "events.jsonl").open("w") as log:
        display.say(f"{job.name}: {job.steps} steps on {job.cluster.num_devices} devices, run folder {folder}")
        if checkpoint is not None:
            display.say(f"it goes on after step {checkpoint.step}, from {checkpoint.folder}")
        with launched(job, folder, address, weights, checkpoint) as run:
            if run.api_url is not None:
                display.say(f"API at {run.api_url}; `nereus status` shows the job")
            for event in run.watch():
                log.write(json.dumps(event_dict(event)) + "\n")
                log.flush()
                display.show(event)
            summary = run.summary()
        display.finish(summary)
    return summary


def _weights(job: Job) -> Path | None:
    """The file of the first weights, made once; None for random ones."""
    if job.weights == "random":
        return None
    from nereus.rl.smollm2 import export

    return export(Path.home() / ".cache" / "nereus" / "smollm2-135m-instruct.safetensors")


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
