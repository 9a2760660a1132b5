"""A job on its way into the controller: what is recorded of it, so that a restarted controller can run it.

Job, checkpoint -> Submission -> Submitted (needs, step times, body)          Claim -> Assignment
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import uuid4

from pydantic import TypeAdapter

from actors.cluster import resource_of, shape_of
from actors.launch import follows_nodes, needed
from nereus.control.checkpoint import Checkpoint
from nereus.policy.grants import Claim, Submitted
from nereus.policy.sharing import step_times
from nereus.rl.describe import describe
from nereus.spec.job import Job


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a runner needs to know of its job, as it is recorded."""

    job: Job
    checkpoint: Checkpoint | None


_ASSIGNMENT = TypeAdapter(Assignment)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that somebody hands in."""

    job: Job
    stamp: str
    """When, as the name of its folder says it."""
    checkpoint: Checkpoint | None = None
    id: str = field(default_factory=lambda: uuid4().hex)
    """Tells it from all others: Ray may hand one in twice, where the controller dies before it has answered."""

    def record(self) -> Submitted:
        """What is recorded of it. Searches a plan for each number of devices."""
        job, config = self.job, describe(self.job)
        places = tuple(p for p in shape_of(job.cluster).places if p not in job.absent)
        is_live = follows_nodes(job)
        expected = config.prior.lengths(0.0, range(1, 2))
        seconds = step_times(config.prior, places, config.node_of, expected) if is_live else {}
        return Submitted(
            id=self.id,
            job=job.name,
            resource=resource_of(job.cluster),
            shape=shape_of(job.cluster),
            needed=needed(job) if is_live else shape_of(job.cluster).places,
            wanted=places if is_live else shape_of(job.cluster).places,
            is_live=is_live,
            seconds=seconds,
            stamp=self.stamp,
            body=_ASSIGNMENT.dump_json(Assignment(job, self.checkpoint)).decode(),
        )


def assignment_of(claim: Claim) -> Assignment:
    """What was recorded of a job. Raises ValidationError where another version did, for which a job is something else."""
    return _ASSIGNMENT.validate_json(claim.told.body)
