"""Starts a job on a cluster, watches it, and leaves nothing behind.

cluster (private, or the one that was named) -> rendezvous + job actor on the head node -> workers, owned by the job
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.job import JOB_LANES, JobActor, JobSpec
from actors.options import DEVICE_RESOURCE, head_options
from actors.private_cluster import private_cluster
from actors.rendezvous import Rendezvous
from nereus.errors import EndpointLost, NereusError, UserError
from nereus.runtime.events import Event
from nereus.runtime.summary import Summary
from nereus.spec.job import Job

CONNECT_TIMEOUT_S = 5.0
"""Seconds until an address without a listener is refused."""

POLL_S = 0.2
"""Seconds between two looks at a running job: fast enough for a live table, and idle otherwise."""


@dataclass(slots=True)
class Launched:
    """A running job."""

    _actor: Any
    _ended: Any
    _seen: int = 0

    def watch(self) -> Iterator[Event]:
        """Yield events as they happen, until the job has ended."""
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
            summary: Summary = ray.get(self._ended)
        except RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, NereusError) else error) from None
        except RayActorError as error:
            raise EndpointLost("job", "the run") from error
        return summary

    def _feed(self) -> Sequence[Event]:
        import ray
        from ray.exceptions import RayActorError

        try:
            events: Sequence[Event] = ray.get(self._actor.feed.options(concurrency_group="watch").remote(self._seen))
        except RayActorError:
            return ()
        self._seen += len(events)
        return events


@contextmanager
def launched(job: Job, folder: Path, address: str | None = None, weights: Path | None = None) -> Iterator[Launched]:
    """Run `job` on a private cluster, or on the cluster at `address`; all its actors end with the context."""
    import ray

    with ExitStack() as stack:
        if address is None:
            stack.enter_context(private_cluster(job.cluster))
        else:
            _check_reachable(address)
            ray.init(address=address, logging_level="ERROR", log_to_driver=False, namespace="nereus")
            stack.callback(ray.shutdown)
        nodes = device_nodes(job, ray.nodes())
        head = next(node for node in ray.nodes() if node["Resources"].get("node:__internal_head__"))
        rendezvous = ray.remote(**head_options(head["NodeID"]))(Rendezvous).remote()
        stack.callback(ray.kill, rendezvous)
        where = ray.get(rendezvous.start.remote(head["NodeManagerAddress"]))
        spec = JobSpec(job, nodes, where, weights, folder)
        actor = ray.remote(**head_options(head["NodeID"], JOB_LANES))(JobActor).remote(spec)
        stack.callback(ray.kill, actor)
        yield Launched(actor, actor.run.options(concurrency_group="loop").remote())


def _check_reachable(address: str) -> None:
    """Raises UserError soon where Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S):
            return
    except (OSError, ValueError) as error:
        raise UserError(
            f"--address: no Ray cluster answers at {address!r} ({error}); give HOST:PORT of its head, or `local`"
        ) from error


def device_nodes(job: Job, nodes: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The Ray node id of each declared device: whole nodes of the cluster, the head first, then by id.

    Raises UserError when the cluster has fewer nodes with enough devices than the job declares.
    """
    resource = "GPU" if job.cluster.device.kind == "gpu" else DEVICE_RESOURCE
    each = job.cluster.devices_per_node
    fit = sorted(
        (node for node in nodes if node["Alive"] and node["Resources"].get(resource, 0) >= each),
        key=lambda node: (not node["Resources"].get("node:__internal_head__"), node["NodeID"]),
    )
    if len(fit) < job.cluster.nodes:
        raise UserError(
            f"cluster.nodes: the job declares {job.cluster.nodes} nodes of {each} devices, and the Ray cluster has "
            f"{len(fit)} with {each} of {resource}; start the nodes with that resource, or declare fewer"
        )
    return tuple(node["NodeID"] for node in fit[: job.cluster.nodes] for _ in range(each))
