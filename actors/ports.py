"""The ports of a job over Ray: verbs become calls on lanes of its workers, completions become events.

Lives in the head actor. Worker processes are owned by the job actor, so that they survive a restart of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import ray

from actors.completions import Completions
from actors.lanes import Lane, call
from nereus.control.checkpoint import StageDigests
from nereus.control.events import DeviceFailed, StateWritten
from nereus.control.report import Release
from nereus.control.state import JobConfig
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from nereus.policy.snapshot import Snapshot
from nereus.runtime.checkpoints import partial_folder
from nereus.transition.collectives import GroupKey
from nereus.transition.ops import Op, Program


class RayPorts:
    """EndpointPort, JobPort, CheckpointPort and PlannerPort of one job."""

    def __init__(
        self,
        config: JobConfig,
        checkpoints: Path,
        run: str,
        job: Any,
        planner: Any,
        completions: Completions,
        on_release: Callable[[Release], None],
        on_stop: Callable[[str], None],
    ) -> None:
        """`checkpoints` is their folder, `run` the name that unfinished ones get; `job` and `planner` are actor handles.

        The callbacks answer the loop's wait at the boundary.
        """
        self._checkpoints, self._run = checkpoints, run
        self._config, self._job, self._planner, self._completions = config, job, planner, completions
        self._on_release, self._on_stop = on_release, on_stop
        self._workers: dict[EndpointId, Any] = {}

    def adopt(self) -> None:
        """Take over the workers that are there: after a restart of the head."""
        self._workers = ray.get(call_watch(self._job, "workers"))

    # JobPort

    def spawn(self, devices: Iterable[DeviceId]) -> None:
        for device in devices:
            endpoint, worker = ray.get(call_watch(self._job, "spawn", device))
            self._workers[endpoint] = worker
            failure = partial(_not_started, device, endpoint)
            self._completions.add(call(worker, Lane.CONTROL, "start"), endpoint, "start", failure)

    def retire(self, endpoints: Iterable[EndpointId]) -> None:
        for endpoint in endpoints:
            if self._workers.pop(endpoint, None) is not None:
                call_watch(self._job, "retire", endpoint)

    def seed(self, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        for endpoint in _endpoints(units):
            self._submit(endpoint, Lane.TRANSFER, "seed", units, dict(self._config.states))

    def quiesce(self, epoch: int, emus: Iterable[Emu], deadline_s: float) -> None:
        for endpoint in _endpoints(tuple(emus)):
            # In the lane that computes: it is answered when all that was submitted before has ended.
            quiesced = call(self._workers[endpoint], Lane.COMPUTE, "quiesce", epoch)
            self._completions.add(quiesced, endpoint, f"quiesce e{epoch}", deadline_s=deadline_s)

    def release(self, release: Release) -> None:
        self._on_release(release)

    def stop(self, reason: str) -> None:
        self._on_stop(reason)

    # EndpointPort

    def install(self, programs: Iterable[Program]) -> None:
        for program in programs:
            self._submit(program.endpoint, Lane.TRANSFER, "install", program)

    def run(self, op: Op) -> None:
        for endpoint in op.members:
            self._submit(endpoint, Lane.TRANSFER, "run_op", op.id)

    def digest(self, tag: str, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        for endpoint in _endpoints(units):
            mine = tuple(emu.unit for emu in units if endpoint in emu.endpoints)
            self._submit(endpoint, Lane.TRANSFER, "digest", tag, mine)

    def bind(self, epoch: int, emus: tuple[Emu, ...], endpoints: Iterable[EndpointId], keep: frozenset[GroupKey]) -> None:
        for endpoint in endpoints:
            self._submit(endpoint, Lane.CONTROL, "bind", epoch, emus, keep)

    def abort(self, epoch: int, members: Iterable[EndpointId]) -> None:
        named = tuple(members)
        # Carried out before the next call in the transfer lane starts, so that it cannot hit a group that is made later.
        aborted = call_watch(self._job, "abort", named)
        for endpoint in named:
            self._submit(endpoint, Lane.TRANSFER, "settle", epoch, aborted)

    # CheckpointPort

    def save(self, tag: str, emus: Iterable[Emu], endpoints: Iterable[EndpointId]) -> None:
        units, folder = tuple(emus), partial_folder(self._checkpoints, self._run, tag)
        for endpoint in endpoints:
            self._submit(endpoint, Lane.TRANSFER, "save", tag, folder, units, dict(self._config.states))

    def seal(self, tag: str, step: int, written: Iterable[StateWritten], digests: StageDigests) -> None:
        sealed = call_watch(self._job, "seal", tag, step, tuple(written), digests)
        self._completions.add(sealed, "job", f"seal {tag}")

    def restore(self, epoch: int, folder: str, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        for endpoint in _endpoints(units):
            self._submit(endpoint, Lane.TRANSFER, "restore", epoch, Path(folder), units, dict(self._config.states))

    # PlannerPort

    def propose(self, cycle: int, snapshot: Snapshot, top: int) -> None:
        self._completions.add(self._planner.propose.remote(cycle, snapshot, top), "planner", "propose")

    def _submit(self, endpoint: EndpointId, lane: Lane, method: str, *args: Any) -> None:
        what = _named(method, args)
        self._completions.add(call(self._workers[endpoint], lane, method, *args), endpoint, what)


def _named(method: str, args: tuple[Any, ...]) -> str:
    """What a failure of a call is told as: the operation, or the verb and what it was for."""
    match method, args:
        case "run_op", (op, *_):
            return str(op)
        case "install", (Program() as program, *_):
            return f"install e{program.epoch}"
        case "digest", (tag, *_):
            return f"digest {tag}"
        case (("bind" | "settle" | "restore"), (epoch, *_)):
            return f"{method} e{epoch}"
        case "save", (tag, *_):
            return f"save {tag}"
    return method


def _not_started(device: DeviceId, endpoint: EndpointId, reason: str) -> DeviceFailed:
    return DeviceFailed(device=device, endpoint=endpoint, reason=reason)


def call_watch(job: Any, method: str, *args: Any) -> Any:
    """Submit a call to the job actor that does not wait for its loop."""
    return getattr(job, method).options(concurrency_group="watch").remote(*args)


def _endpoints(units: tuple[Emu, ...]) -> list[EndpointId]:
    return sorted({endpoint for emu in units for endpoint in emu.endpoints})
