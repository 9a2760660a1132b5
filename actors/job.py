"""The job actor: runs the RL loop on the head node, and owns the workers.

`run` blocks on the loop's lane until the job has ended; the head starts and ends workers through the other one meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.worker_pool import WorkerPool
from nereus.control.checkpoint import StageDigests
from nereus.control.events import StateSealed, StateWritten
from nereus.control.report import Release, StepReport
from nereus.emu.plan import DeviceId
from nereus.errors import EndpointLost, JobStopped, NereusError
from nereus.layout.catalog import EndpointId
from nereus.policy.seating import Seats
from nereus.rl.assemble import save_weights
from nereus.rl.describe import describe
from nereus.rl.ledger import SampleLedger
from nereus.rl.loop import RlLoop
from nereus.rl.rollouts import RecordedRollouts, RolloutRecorder
from nereus.rl.sources import Live, Recorded, RolloutSource
from nereus.rl.task import make_task
from nereus.runtime.checkpoints import WrittenFile, load, root_of, seal
from nereus.runtime.index import index_of
from nereus.runtime.summary import SampleCounts
from nereus.spec.job import Job
from nereus.spec.stages import ACTOR_TRAINING

WEIGHTS_FILE = "model.safetensors"
"""The trained parameters, in the run's folder."""

JOB_LANES = {"loop": 1, "watch": 1}
"""The loop has a thread of its own, so that starting and ending workers never waits for it."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the job actor is told when it is made."""

    job: Job
    seats: Seats
    """Where its devices are at the start."""
    takes: Mapping[str, Any]
    """What the worker of one device takes of its node, as Ray's options say it."""
    rendezvous: Any
    """The handle of its actor, which starts at the same time."""
    weights: Path | None
    """A safetensors file with the first weights; None for random ones."""
    folder: Path
    """The run's folder, on the head node."""


class JobActor:
    """One RL job."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        store = ray.get(spec.rendezvous.start.remote(ray.util.get_node_ip_address()))
        self._pool = WorkerPool(spec.job, spec.seats, spec.takes, store, spec.weights, spec.folder.name)
        self._loop: RlLoop
        self._followed = 0

    def run(self, head: Any) -> SampleCounts:
        """Run the job to its end; how its samples were used. Raises what ended it otherwise."""
        spec, job = self._spec, self._spec.job
        ledger = SampleLedger(job.task.num_prompts, job.seed)
        recorder = RolloutRecorder(Path(job.rollouts.record)) if job.rollouts.record else None

        def boundary(report: StepReport) -> Release:
            return self._new(_ask(head, "boundary", report, self._followed))

        def recover(lost: EndpointLost) -> Release:
            return self._new(_ask(head, "lost", *lost.facts.values()))

        self._loop = loop = RlLoop(job, self._pool, self._source(), ledger, boundary, recover, recorder, _loop_of)
        try:
            loop.run(self._new(_ask(head, "begin")))
            if job.save_weights:
                save_weights(spec.folder / WEIGHTS_FILE, loop.weights(describe(job).states[ACTOR_TRAINING]))
        except Exception:
            self._pool.abort(self._pool.actors)
            raise
        return SampleCounts(seen=ledger.seen, repeated=ledger.repeated, skipped=ledger.skipped)

    def _new(self, release: Release) -> Release:
        """A release; one that follows a checkpoint says so once, however often it is asked for."""
        if release.followed is None or release.followed.epoch == self._followed:
            return replace(release, followed=None)
        self._followed = release.followed.epoch
        return release

    def seal(self, tag: str, step: int, written: tuple[StateWritten, ...], digests: StageDigests) -> StateSealed:
        """Make a checkpoint of the shares that workers have written; the loop waits at the boundary after `step` meanwhile.

        Raises NereusError where it does not: its own state would be of another step than the shares.
        """
        spec, job, loop = self._spec, self._spec.job, self._loop.state()
        if loop["step"] != step:
            raise NereusError(f"the shares of {tag} are of step {step}, and the loop has done {loop['step']}")
        index = index_of(
            job=job.name,
            run=spec.folder.name,
            tag=tag,
            loop=loop,
            states=describe(job).states,
            written=written,
            digests=digests,
        )
        files = [WrittenFile(part.file, part.num_bytes, part.sha256) for part in written]
        path = seal(root_of(job.checkpoint.folder, spec.folder), index, files, job.checkpoint.keep)
        return StateSealed(tag=tag, folder=str(path.absolute()))

    def seat(self, seats: Seats) -> None:
        """Where devices that arrive are."""
        self._pool.seat(seats)

    def seats(self) -> Seats:
        """Where each device is, or was last."""
        return self._pool.seats

    def spawn(self, device: DeviceId) -> tuple[EndpointId, Any]:
        return self._pool.spawn(device)

    def retire(self, endpoint: EndpointId) -> None:
        self._pool.retire(endpoint)

    def abort(self, members: Iterable[EndpointId]) -> None:
        """Returns when the abort was carried out wherever somebody lives."""
        self._pool.abort(members)

    def workers(self) -> dict[EndpointId, Any]:
        return self._pool.actors

    def _source(self) -> RolloutSource:
        job = self._spec.job
        if job.rollouts.source == "recorded":
            assert job.rollouts.path is not None
            return Recorded(RecordedRollouts(Path(job.rollouts.path)))
        task = make_task(job.task.name, job.seed, job.task.num_prompts)
        return Live(job, task, task.tokens.eos, self._pool)


def _loop_of(folder: str) -> Mapping[str, Any]:
    return load(Path(folder)).loop


def _ask(head: Any, method: str, *args: Any) -> Release:
    """Call the head and wait, through its restarts; raises the reason when it has stopped the job."""
    try:
        release: Release = ray.get(getattr(head, method).options(concurrency_group="boundary").remote(*args))
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, NereusError) else error) from None
    except RayActorError as error:
        raise JobStopped("the controller died and did not come back; run the job again") from error
    return release
