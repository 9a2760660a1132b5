"""From a job file to a `Job`, or to one JobFileError that says what to change.

path -> read_yaml -> parse_job: fields and types, then the rules between fields -> paths made absolute, trace read -> Job
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from nereus.errors import UserError
from nereus.spec.checks import Check, check_policy
from nereus.spec.devices import format_devices
from nereus.spec.job import Job
from nereus.spec.problems import Problem, from_validation, refuse
from nereus.spec.reading import read_yaml
from nereus.spec.script import CHECKS
from nereus.spec.traces import AvailabilityTrace, read_availability

RULES: tuple[Check, ...] = (check_policy, *CHECKS)
"""Every rule between fields, in the order in which its problems are reported; who changes the plan decides what else is."""

MAX_SHARE_OF_CORES = 0.8
"""Share of the machine's cores that all paced devices may have; the rest is for Ray, transfers and set-up. Above it,
devices wait for cores, and the declared speed is no longer the real one."""


def load_job(path: str | Path) -> Job:
    """The job that a file declares, its paths made absolute. Raises JobFileError, and nothing else."""
    path = Path(path)
    folder = path.absolute().parent
    job = _resolve_checkpoints(_resolve_rollouts(parse_job(read_yaml(path)), folder), folder)
    if job.availability is None:
        return job
    followed = _following(job, folder / job.availability, job.availability)
    if job.absent and set(job.absent) != set(followed.absent):
        there = format_devices(followed.absent) or "none"
        allowed = f"with availability it must be left out: the devices that the trace leaves out at the start are {there}"
        raise refuse([Problem("absent", format_devices(job.absent), allowed)])
    return followed


def with_availability(job: Job, path: str | Path) -> Job:
    """This job in a pool that follows a trace; devices that aren't there at its start become `absent`, whatever was.

    Raises JobFileError if the file isn't a trace, the job doesn't adapt, or its plan needs devices that aren't there.
    """
    return _following(job, Path(path).absolute(), str(path))


def availability_of(job: Job) -> AvailabilityTrace | None:
    """The trace that a loaded job follows, scaled to its cluster; None if its pool stays as it is. Raises UserError."""
    return None if job.availability is None else read_availability(job.availability).scaled(job.cluster.num_devices)


def parse_job(data: object) -> Job:
    """The job in plain data such as YAML gives. Raises JobFileError with all problems in one message."""
    try:
        job = Job.model_validate(data)
    except ValidationError as error:
        raise refuse(from_validation(error, Job, data)) from None
    _check(job)
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


def _following(job: Job, path: Path, written: str) -> Job:
    try:
        trace = read_availability(path).scaled(job.cluster.num_devices)
    except UserError as error:
        raise refuse([Problem("availability", written, f"it must be a trace of the pool: {error}")]) from None
    absent = tuple(range(trace.points[0][1], job.cluster.num_devices))
    followed = job.model_copy(update={"availability": str(path), "absent": absent})
    _check(followed)
    return followed


def _check(job: Job) -> None:
    problems = [problem for rule in RULES for problem in rule(job)]
    if problems:
        raise refuse(problems)


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


def _resolve_checkpoints(job: Job, folder: Path) -> Job:
    rule = job.checkpoint
    if rule.folder is None:
        return job
    return job.model_copy(update={"checkpoint": rule.model_copy(update={"folder": str(folder / rule.folder)})})


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
