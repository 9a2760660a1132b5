"""The worker processes of one job, as their owner and the loop see them: started, ended, and computed on.

Lives in the job actor. Ray ends the workers with the process that made them, so they survive the head, not the job.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.lanes import Lane, call
from actors.options import worker_options
from actors.rendezvous import connect
from actors.worker import Worker, WorkerSpec
from nereus.control.report import Release
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu
from nereus.errors import EndpointLost
from nereus.layout.catalog import EndpointId
from nereus.layout.tensors import Kind
from nereus.policy.seating import Seats
from nereus.rl.assemble import Piece
from nereus.rl.endpoint import Answer, Status
from nereus.rl.fleet import Work
from nereus.spec.job import Job
from nereus.transport.abort import await_aborts, request_abort

STORE_TIMEOUT_S = 30.0
"""Seconds until a request to the rendezvous fails: it answers in a millisecond, or is gone."""

ROOT_CAUSE_WAIT_S = 2.0
"""Seconds to wait, after a first failure, for the death that caused it: a peer's broken connection is reported sooner."""


class WorkerPool:
    """Owns the worker actors; the loop's Fleet."""

    def __init__(
        self,
        job: Job,
        seats: Seats,
        takes: Mapping[str, Any],
        rendezvous: tuple[str, int],
        weights: Path | None,
        run: str,
    ) -> None:
        """`takes` is what a worker takes of its node, as Ray's options say it; Ray lists it as RUN/ENDPOINT."""
        self._run = run
        self._job, self._takes, self._rendezvous, self._weights = job, takes, rendezvous, weights
        self.seats = dict(seats)
        """Where each device is, or was last."""
        self._store = connect(rendezvous, STORE_TIMEOUT_S)
        self._actors: dict[EndpointId, Any] = {}
        self._births: dict[DeviceId, int] = {}

    @property
    def actors(self) -> dict[EndpointId, Any]:
        """Those that were started and not ended."""
        return dict(self._actors)

    def seat(self, seats: Seats) -> None:
        """Where devices are from now on; a worker that is left of what was there before is ended."""
        for place, seat in seats.items():
            if self.seats.get(place, seat) != seat:
                self.retire(f"d{place}.{self._births.get(place, 0)}")
            self.seats[place] = seat

    def spawn(self, device: DeviceId) -> tuple[EndpointId, Any]:
        """The worker of a device, made if there is none: its endpoint and actor handle."""
        birth = self._births.get(device, 0)
        endpoint = f"d{device}.{birth}"
        if endpoint not in self._actors:
            self._births[device] = birth
            spec = WorkerSpec(endpoint, device, self._job, self._rendezvous, self._weights)
            options = worker_options(f"{self._run}/{endpoint}", self.seats[device].node, self._takes)
            self._actors[endpoint] = ray.remote(**options)(Worker).remote(spec)
        return endpoint, self._actors[endpoint]

    def retire(self, endpoint: EndpointId) -> None:
        """End a worker; the next one on its device is another endpoint."""
        actor = self._actors.pop(endpoint, None)
        if actor is not None:
            ray.kill(actor)
            device, _, birth = endpoint.removeprefix("d").partition(".")
            self._births[int(device)] = int(birth) + 1

    def abort(self, members: Iterable[EndpointId]) -> None:
        """Unblock every collective of these endpoints; returns when that is done, but waits for none that has died."""
        requests = request_abort(self._store, [endpoint for endpoint in members if endpoint in self._actors])
        await_aborts(self._store, requests, ROOT_CAUSE_WAIT_S)

    # Fleet

    def compute(self, epoch: int, work: Sequence[Work]) -> list[list[Answer]]:
        # All of them first: a unit without its worker must be found before others wait in a collective for it.
        workers = [self._of(emu.endpoints, emu.stage) for emu, _ in work]
        refs = [
            [call(worker, Lane.COMPUTE, "compute", emu.unit, epoch, handle) for worker in of_unit]
            for of_unit, emu, handle in zip(
                workers, (emu for emu, _ in work), [ray.put(request) for _, request in work], strict=True
            )
        ]
        owners = {
            ref: endpoint
            for (emu, _), unit in zip(work, refs, strict=True)
            for ref, endpoint in zip(unit, emu.endpoints, strict=True)
        }
        answers = self._all(owners, work[0][0].stage if work else "nothing")
        return [[answers[ref] for ref in unit] for unit in refs]

    def sync(self, release: Release) -> None:
        members = release.sync_members
        workers = self._of(members, "weight sync")
        owners = {call(w, Lane.TRANSFER, "run_op", release.sync_op): e for w, e in zip(workers, members, strict=True)}
        self._all(owners, "weight sync")

    def read(self, emu: Emu, kind: Kind) -> list[Piece]:
        doing = "reading the weights"
        workers = self._of(emu.endpoints, doing)
        owners = {call(w, Lane.CONTROL, "read", emu.unit, kind): e for w, e in zip(workers, emu.endpoints, strict=True)}
        return [piece for pieces in self._all(owners, doing).values() for piece in pieces]

    def status(self, release: Release) -> list[Status]:
        endpoints = sorted({endpoint for emus in release.emus.values() for emu in emus for endpoint in emu.endpoints})
        workers = self._of(endpoints, "status")
        owners = {call(w, Lane.CONTROL, "status"): e for w, e in zip(workers, endpoints, strict=True)}
        return list(self._all(owners, "status").values())

    def _of(self, endpoints: Sequence[EndpointId], doing: str) -> list[Any]:
        """The actors of endpoints. Raises EndpointLost for one that was ended: its device is gone, or all start anew."""
        actors = self.actors
        for endpoint in endpoints:
            if endpoint not in actors:
                raise EndpointLost(endpoint, doing)
        return [actors[endpoint] for endpoint in endpoints]

    def _all(self, owners: dict[Any, EndpointId], doing: str) -> dict[Any, Any]:
        """Every result, as soon as all are there; the first failure ends the wait, and a death is named as its reason."""
        waiting, results = list(owners), dict[Any, Any]()
        failure: Exception | None = None
        deadline = float("inf")
        while waiting and time.monotonic() < deadline:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=ROOT_CAUSE_WAIT_S)
            for ref in ready:
                try:
                    results[ref] = ray.get(ref)
                except RayActorError:
                    self._quiet(owners, waiting)
                    raise EndpointLost(owners[ref], doing) from None
                except RayTaskError as error:
                    cause = error.cause
                    failure = failure or (cause if isinstance(cause, Exception) else error)
                    deadline = min(deadline, time.monotonic() + ROOT_CAUSE_WAIT_S)
        if failure is not None:
            raise failure
        return results

    def _quiet(self, owners: dict[Any, EndpointId], waiting: list[Any]) -> None:
        """After a death: unblock the others and wait until none of them computes or moves state any more."""
        requests = request_abort(self._store, {e for e in owners.values() if e in self._actors})
        await_aborts(self._store, requests, ROOT_CAUSE_WAIT_S)
        if waiting:
            ray.wait(waiting, num_returns=len(waiting), timeout=STORE_TIMEOUT_S)
