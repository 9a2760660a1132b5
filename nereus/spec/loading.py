"""From a job file to a `Job`, or to one JobFileError that says what to change.

path -> read_yaml -> parse_job: fields and types, then the rules between fields -> Job
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from nereus.spec.job import Job
from nereus.spec.problems import Problem, from_validation, refuse
from nereus.spec.reading import read_yaml
from nereus.spec.script import CHECKS

MAX_SHARE_OF_CORES = 0.8
"""Share of the machine's cores that all paced devices may have; the rest is for Ray, transfers and set-up. Above it,
devices wait for cores, and the declared speed is no longer the real one."""


def load_job(path: str | Path) -> Job:
    """The job that a file declares; its rollout paths are made absolute. Raises JobFileError, and nothing else."""
    path = Path(path)
    job = parse_job(read_yaml(path))
    return _resolve_rollouts(job, path.absolute().parent)


def parse_job(data: object) -> Job:
    """The job in plain data such as YAML gives. Raises JobFileError with all problems in one message."""
    try:
        job = Job.model_validate(data)
    except ValidationError as error:
        raise refuse(from_validation(error, Job, data)) from None
    problems = [problem for check in CHECKS for problem in check(job)]
    if problems:
        raise refuse(problems)
    return job


def check_cores(job: Job, num_cores: float) -> None:
    """Raises JobFileError when the paced devices together want more than 0.8 of this machine's cores."""
    device, num_devices = job.cluster.device, job.cluster.num_devices
    if device.speed is None:
        return
    budget = MAX_SHARE_OF_CORES * num_cores
    if num_devices * device.speed > budget * (1 + 1e-9):
        most = int(budget / num_devices * 10_000) / 10_000
        allowed = (
            f"{num_devices} devices may have {MAX_SHARE_OF_CORES} of the {num_cores:g} cores together, "
            f"so it must be at most {most:g}; or null, unpaced"
        )
        raise refuse([Problem("cluster.device.speed", device.speed, allowed)])


def _resolve_rollouts(job: Job, folder: Path) -> Job:
    rollouts = job.rollouts
    changes = {
        name: str(folder / value)
        for name, value in (("path", rollouts.path), ("record", rollouts.record))
        if value is not None
    }
    if "path" in changes and not _exists(Path(changes["path"])):
        raise refuse([Problem("rollouts.path", rollouts.path, f"it must exist; {changes['path']} does not")])
    return job.model_copy(update={"rollouts": rollouts.model_copy(update=changes)}) if changes else job


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
