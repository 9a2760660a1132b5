"""Starts a job on a cluster, watches it, and leaves nothing behind.

cluster (private, or the one that was named) -> rendezvous + job actor on the head node -> workers, owned by the job
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from actors.api import Api, HeadPort
from actors.cluster import first_seats, ground
from actors.connection import connected
from actors.head import HEAD_LANES, Head, HeadSpec
from actors.job import JOB_LANES, JobActor, JobSpec
from actors.options import head_options
from actors.planner import Planner
from actors.rendezvous import Rendezvous
from nereus.api.address import DEFAULT_PORT
from nereus.api.jobs import OneJob
from nereus.control.checkpoint import Checkpoint
from nereus.control.effects import News
from nereus.control.state import JobState
from nereus.emu.plan import DeviceId, Plan
from nereus.errors import JobStopped, NereusError
from nereus.monitor.pool import PoolEmulator
from nereus.policy.seating import Seats
from nereus.rl.describe import describe
from nereus.runtime.summary import SampleCounts, Summary, summarize
from nereus.spec.job import Job
from nereus.spec.traces import read_availability

FEED_TIMEOUT_S = 5.0
"""Seconds to wait for news: a head that restarts answers later, and nothing is lost meanwhile."""

POLL_S = 0.2
"""Seconds between two looks at a running job: fast enough for a live table, and idle otherwise."""


@dataclass(slots=True)
class Launched:
    """A running job: its loop's result to come, and its head, which tells what happens."""

    _job: Job
    head: Any
    _ended: Any
    api_url: str | None = None
    """Where the API answers."""
    _news: list[News] = field(default_factory=list)

    def watch(self, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[News]:
        """Yield what happens, until the job has ended, or is to end."""
        import ray

        done = False
        while not done and not is_cancelled():
            done = bool(ray.wait([self._ended], timeout=POLL_S)[0])
            yield from self._feed()

    def summary(self) -> Summary:
        """The summary of the ended job. Raises the error that ended it otherwise."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            samples: SampleCounts = ray.get(self._ended)
        except RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, NereusError) else error) from None
        except RayActorError as error:
            raise JobStopped(
                f"the process of the RL loop died, and all workers with it; run the job again: {error}"
            ) from error
        return summarize(self._news, samples, partial(_predicted_peak, JobState(config=describe(self._job))))

    def _feed(self) -> Sequence[News]:
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            feed = self.head.feed.options(concurrency_group="watch").remote(len(self._news))
            fresh: Sequence[News] = ray.get(feed, timeout=FEED_TIMEOUT_S)
        except (RayActorError, GetTimeoutError):
            return ()
        self._news.extend(fresh)
        return fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Footing:
    """What a job stands on."""

    seats: Seats
    """Its devices at the start."""
    takes: Mapping[str, Any]
    """What the worker of one device takes of its node, as Ray's options say it."""
    is_live: bool
    """Whether its devices may change with those of the cluster."""
    is_alone: bool
    """Whether it has the cluster to itself, and looks at the nodes; if not, it is told what it may use."""


@contextmanager
def launched(
    job: Job,
    folder: Path,
    address: str | None = None,
    weights: Path | None = None,
    checkpoint: Checkpoint | None = None,
) -> Iterator[Launched]:
    """Run `job` on a private cluster, or alone on the cluster at `address`; all its actors end with the context.

    With a checkpoint it goes on from there.
    """
    with (
        connected(job.cluster, address),
        alone(job, folder, weights, checkpoint, is_private=address is None) as run,
    ):
        yield run


@contextmanager
def alone(
    job: Job, folder: Path, weights: Path | None, checkpoint: Checkpoint | None, *, is_private: bool
) -> Iterator[Launched]:
    """Run `job` on the connected cluster, which it has to itself, with an API of its own."""
    import ray

    found = ground(job.cluster)
    is_live = not is_private and follows_nodes(job) and bool(found.takes)
    seats = first_seats(job.cluster, found.nodes, needed(job) if is_live else range(job.cluster.num_devices))
    footing = Footing(seats=seats, takes=found.takes, is_live=is_live, is_alone=is_live)
    with started(job, folder, footing, weights, checkpoint) as run:
        options = head_options()
        api = ray.remote(**options)(Api).remote(OneJob(job.name, HeadPort(run.head)))
        run.api_url = _served(api)
        try:
            yield run
        finally:
            ray.kill(api)


@contextmanager
def started(
    job: Job, folder: Path, footing: Footing, weights: Path | None, checkpoint: Checkpoint | None
) -> Iterator[Launched]:
    """Run `job` on the connected cluster; all its actors belong to this process and end with the context."""
    import ray

    with ExitStack() as stack:

        def start(actor: type, *args: Any, **options: Any) -> Any:
            """An actor of the control plane on the head node, which ends with the context."""
            handle = ray.remote(**head_options(**options))(actor).remote(*args)
            stack.callback(ray.kill, handle)
            return handle

        name = folder.name
        spec = JobSpec(job, footing.seats, footing.takes, start(Rendezvous), weights, folder)
        loop = start(JobActor, spec, lanes=JOB_LANES, name=f"{name}/loop")
        start(Planner, name=f"{name}/planner", restarts=True)
        pool = pool_emulator(job)
        devices = tuple(d for d in sorted(footing.seats) if d not in job.absent)
        if pool is not None:
            devices = pool.state(checkpoint.step if checkpoint else 0).staying
        told = HeadSpec(
            job=job,
            folder=folder,
            devices=devices,
            seats=footing.seats,
            is_live=footing.is_live,
            is_alone=footing.is_alone,
            pool=pool,
            loop=f"{name}/loop",
            planner=f"{name}/planner",
            checkpoint=checkpoint,
        )
        head = start(Head, told, lanes=HEAD_LANES, restarts=True, name=head_name(name))
        yield Launched(job, head, loop.run.options(concurrency_group="loop").remote(head))


def head_name(run: str) -> str:
    """The name of the head actor of a run, by the name of its folder."""
    return f"{run}/head"


def follows_nodes(job: Job) -> bool:
    """Whether a job can use devices that come, and leave those that go: not one that may not adapt, or that has a trace."""
    return job.policy.adapt and job.availability is None


def needed(job: Job) -> tuple[DeviceId, ...]:
    """The devices without which a job cannot start: those of its first plan."""
    return tuple(sorted({device for choice in job.plan.values() for device in choice.devices}))


def first_weights(job: Job) -> Path | None:
    """The file of the first weights, made once on this machine; None for random ones."""
    if job.weights == "random":
        return None
    from nereus.rl.smollm2 import export

    return export(Path.home() / ".cache" / "nereus" / "smollm2-135m-instruct.safetensors")


def _served(api: Any) -> str | None:
    """Serve the API; its address, or None when no port is free, which is no reason not to run."""
    import ray
    from ray.exceptions import RayTaskError

    try:
        host, port = ray.get(api.start.remote(DEFAULT_PORT))
    except RayTaskError:
        return None
    return f"http://{host}:{port}"


def pool_emulator(job: Job) -> PoolEmulator | None:
    """How the pool of a job changes: by its availability trace, mapped onto its steps; None without one."""
    if job.availability is None:
        return None
    trace = read_availability(Path(job.availability)).scaled(job.cluster.num_devices)
    return PoolEmulator(
        counts=trace.by_steps(job.steps),
        devices=tuple(range(job.cluster.num_devices)),
        notice_steps=job.policy.notice_steps,
    )


def _predicted_peak(state: JobState, plan: Plan, step: int) -> int:
    """Predicted bytes of the worst device in one step."""
    pricing = state.pricing
    return max(pricing.peaks(plan, pricing.lengths(0.0, range(step, step + 1))).values())
