"""The workers of one job, through the ports: endpoints for the controller, a fleet for the loop, spawn and retire.

Lives in the job actor. Verbs submit to lanes and return; completions are read with `next_fact`. Ray owns the processes:
when the job actor ends, its workers end with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.lanes import Lane, call
from actors.options import worker_options
from actors.rendezvous import connect
from actors.worker import Worker, WorkerSpec
from nereus.emu.plan import DeviceId
from nereus.emu.unit import Emu, counter_tensors
from nereus.errors import EndpointLost
from nereus.layout.catalog import EndpointId
from nereus.layout.dense import state_spec
from nereus.layout.tensors import Kind
from nereus.rl.assemble import Piece
from nereus.rl.endpoint import Answer, Status, compute_groups
from nereus.rl.fleet import Work
from nereus.runtime.facts import EndpointDied, Fact, OpFailed
from nereus.runtime.ports import JobDescription
from nereus.spec.job import Job
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.transition.ops import GroupKey, Op, Program
from nereus.transport.abort import request_abort

STORE_TIMEOUT_S = 30.0
"""Seconds until a request to the rendezvous fails: it answers in a millisecond, or is gone."""

ROOT_CAUSE_WAIT_S = 2.0
"""Seconds to wait, after a first failure, for the death that caused it: a peer's broken connection is reported sooner."""


class RayWorkers:
    """Implements EndpointPort, JobPort and Fleet over worker actors."""

    def __init__(self, job: Job, nodes: Sequence[str], rendezvous: tuple[str, int], weights: Path | None) -> None:
        """`nodes[d]` is the Ray node id of device d."""
        self._job, self._nodes, self._rendezvous, self._weights = job, nodes, rendezvous, weights
        self._store = connect(rendezvous, STORE_TIMEOUT_S)
        self._actors: dict[EndpointId, Any] = {}
        self._births: dict[DeviceId, int] = {}
        self._pending: dict[Any, tuple[EndpointId, str]] = {}
        self._facts: deque[Fact] = deque()
        self._described = _describe(job)
        self._synced: dict[str, tuple[EndpointId, ...]] = {}

    @property
    def endpoints(self) -> tuple[EndpointId, ...]:
        """Those that were started and not retired."""
        return tuple(self._actors)

    # JobPort

    def describe(self) -> JobDescription:
        return self._described

    def compute_groups(self, emus: Iterable[Emu]) -> frozenset[GroupKey]:
        return compute_groups(emus, self._job.model)

    def spawn(self, devices: Iterable[DeviceId]) -> None:
        for device in devices:
            birth = self._births.get(device, -1) + 1
            self._births[device] = birth
            endpoint = f"d{device}.{birth}"
            spec = WorkerSpec(endpoint, device, self._job, self._rendezvous, self._weights)
            gpu = self._job.cluster.device.kind == "gpu"
            actor = ray.remote(**worker_options(self._nodes[device], gpu=gpu))(Worker).remote(spec)
            self._actors[endpoint] = actor
            self._submit(endpoint, Lane.CONTROL, "start")

    def retire(self, endpoints: Iterable[EndpointId]) -> None:
        for endpoint in endpoints:
            ray.kill(self._actors.pop(endpoint))

    def seed(self, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        for endpoint in sorted({endpoint for emu in units for endpoint in emu.endpoints}):
            self._submit(endpoint, Lane.TRANSFER, "seed", units, dict(self._described.states))

    # EndpointPort

    def install(self, program: Program) -> None:
        for op in program.ops:
            if op.primitive == "WeightSync":
                self._synced[op.id] = tuple(sorted({*self._synced.get(op.id, ()), program.endpoint}))
        self._submit(program.endpoint, Lane.TRANSFER, "install", program)

    def run(self, op: Op) -> None:
        for endpoint in op.members:
            self._submit(endpoint, Lane.TRANSFER, "run_op", op.id)

    def digest(self, emus: Iterable[Emu]) -> None:
        units = tuple(emus)
        for endpoint in sorted({endpoint for emu in units for endpoint in emu.endpoints}):
            mine = tuple(emu.unit for emu in units if endpoint in emu.endpoints)
            self._submit(endpoint, Lane.TRANSFER, "digest", mine)

    def bind(self, epoch: int, emus: tuple[Emu, ...], endpoints: Iterable[EndpointId], keep: frozenset[GroupKey]) -> None:
        for endpoint in endpoints:
            self._submit(endpoint, Lane.CONTROL, "bind", epoch, emus, keep)

    def abort(self, members: Iterable[EndpointId]) -> None:
        request_abort(self._store, [endpoint for endpoint in members if endpoint in self._actors])

    def next_fact(self, timeout_s: float) -> Fact | None:
        if not self._facts and self._pending:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=timeout_s)
            for ref in ready:
                self._facts.append(self._fact(ref))
        return self._facts.popleft() if self._facts else None

    # Fleet

    def compute(self, epoch: int, work: Sequence[Work]) -> list[list[Answer]]:
        refs = [
            [call(self._actors[endpoint], Lane.COMPUTE, "compute", emu.unit, epoch, handle) for endpoint in emu.endpoints]
            for emu, handle in ((emu, ray.put(request)) for emu, request in work)
        ]
        owners = {
            ref: endpoint
            for (emu, _), unit in zip(work, refs, strict=True)
            for ref, endpoint in zip(unit, emu.endpoints, strict=True)
        }
        answers = self._all(owners, f"{work[0][0].stage}" if work else "nothing")
        return [[answers[ref] for ref in unit] for unit in refs]

    def sync(self, op: str) -> None:
        owners = {call(self._actors[e], Lane.TRANSFER, "run_op", op): e for e in self._synced[op]}
        self._all(owners, "weight sync")

    def read(self, emu: Emu, kind: Kind) -> list[Piece]:
        owners = {call(self._actors[e], Lane.CONTROL, "read", emu.unit, kind): e for e in emu.endpoints}
        return [piece for pieces in self._all(owners, "reading the weights").values() for piece in pieces]

    def status(self) -> list[Status]:
        owners = {call(actor, Lane.CONTROL, "status"): endpoint for endpoint, actor in self._actors.items()}
        return list(self._all(owners, "status").values())

    def _submit(self, endpoint: EndpointId, lane: Lane, method: str, *args: Any) -> None:
        name = str(args[0]) if method == "run_op" else method
        self._pending[call(self._actors[endpoint], lane, method, *args)] = endpoint, name

    def _fact(self, ref: Any) -> Fact:
        endpoint, name = self._pending.pop(ref)
        try:
            fact: Fact = ray.get(ref)
        except RayActorError:
            return EndpointDied(endpoint=endpoint, during=name)
        except RayTaskError as error:
            return OpFailed(endpoint=endpoint, op=name, error=_cause(error))
        return fact

    def _all(self, owners: dict[Any, EndpointId], doing: str) -> dict[Any, Any]:
        """Every result, as soon as all are there; the first failure ends the wait, and a death is named as its reason."""
        waiting, results = list(owners), dict[Any, Any]()
        failure: Exception | None = None
        deadline = float("inf")
        while waiting and time.monotonic() < deadline:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=min(60.0, ROOT_CAUSE_WAIT_S if failure else 60.0))
            for ref in ready:
                try:
                    results[ref] = ray.get(ref)
                except RayActorError:
                    raise EndpointLost(owners[ref], doing) from None
                except RayTaskError as error:
                    failure = failure or _cause(error)
                    deadline = min(deadline, time.monotonic() + ROOT_CAUSE_WAIT_S)
        if failure is not None:
            raise failure
        return results


def _cause(error: RayTaskError) -> Exception:
    cause = error.cause
    return cause if isinstance(cause, Exception) else error


def _describe(job: Job) -> JobDescription:
    counters = counter_tensors()
    return JobDescription(
        states={
            ACTOR_GENERATION: state_spec(job.model, job.dtype, counters, optimizer=False),
            REFERENCE_INFERENCE: state_spec(job.model, job.dtype, counters, optimizer=False),
            ACTOR_TRAINING: state_spec(job.model, job.dtype, counters, optimizer=True),
        },
        trains=ACTOR_TRAINING,
        generates=ACTOR_GENERATION,
        global_batch=job.global_batch,
    )
