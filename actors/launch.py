"""Starts a job on a cluster, watches it, and leaves nothing behind.

cluster (private, or the one that was named) -> rendezvous + job actor on the head node -> workers, owned by the job
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from actors.api import Api
from actors.cluster import connected, head_node, seats
from actors.head import HEAD_LANES, Head, HeadSpec
from actors.job import JOB_LANES, JobActor, JobSpec
from actors.options import head_options
from actors.planner import Planner
from actors.rendezvous import Rendezvous
from nereus.api.address import DEFAULT_PORT
from nereus.control.checkpoint import Checkpoint
from nereus.control.effects import News
from nereus.control.state import JobState
from nereus.emu.plan import Plan
from nereus.errors import JobStopped, NereusError
from nereus.monitor.pool import PoolEmulator
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
    _head: Any
    _ended: Any
    api_url: str | None
    """Where the API answers."""
    _news: list[News] = field(default_factory=list)

    def watch(self) -> Iterator[News]:
        """Yield what happens, until the job has ended."""
        import ray

        done = False
        while not done:
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
            raise JobStopped("the process of the RL loop died, and all workers with it; run the job again") from error
        return summarize(self._news, samples, partial(_predicted_peak, JobState(config=describe(self._job))))

    def _feed(self) -> Sequence[News]:
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            feed = self._head.feed.options(concurrency_group="watch").remote(len(self._news))
            fresh: Sequence[News] = ray.get(feed, timeout=FEED_TIMEOUT_S)
        except (RayActorError, GetTimeoutError):
            return ()
        self._news.extend(fresh)
        return fresh


@contextmanager
def launched(
    job: Job,
    folder: Path,
    address: str | None = None,
    weights: Path | None = None,
    checkpoint: Checkpoint | None = None,
) -> Iterator[Launched]:
    """Run `job` on a private cluster, or on the cluster at `address`; all its actors end with the context.

    With a checkpoint it goes on from there.
    """
    import ray

    with ExitStack() as stack:
        stack.enter_context(connected(job.cluster, address))
        nodes = ray.nodes()
        where, on_head = seats(job.cluster, nodes), head_node(nodes)

        def start(actor: type, *args: Any, **options: Any) -> Any:
            """An actor of the control plane on the head node, which ends with the context."""
            handle = ray.remote(**head_options(on_head["NodeID"], **options))(actor).remote(*args)
            stack.callback(ray.kill, handle)
            return handle

        rendezvous = start(Rendezvous)
        store = ray.get(rendezvous.start.remote(on_head["NodeManagerAddress"]))
        loop_name, planner_name = f"{folder.name}/loop", f"{folder.name}/planner"
        loop = start(JobActor, JobSpec(job, where, store, weights, folder), lanes=JOB_LANES, name=loop_name)
        start(Planner, name=planner_name, restarts=True)
        pool = pool_emulator(job)
        devices = tuple(d for d in range(job.cluster.num_devices) if d not in job.absent)
        if pool is not None:
            devices = pool.state(checkpoint.step if checkpoint else 0).staying
        spec = HeadSpec(job, folder, devices, pool, loop_name, planner_name, checkpoint)
        head = start(Head, spec, lanes=HEAD_LANES, restarts=True)
        ended = loop.run.options(concurrency_group="loop").remote(head)
        yield Launched(job, head, ended, _serve_api(start(Api, job.name, head)))


def _serve_api(api: Any) -> str | None:
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
