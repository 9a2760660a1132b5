"""Operations as an order sees them: what each waits for, and what it takes and gives back on each device.

    Task: after, takes at its start, gives at its end, seconds, shares of uplinks      Problem: tasks, held, usable bytes

Endpoints on which the same tasks take and give the same from the same level see the same memory: they are one `Device` here.
Only those on which everything together would not fit can forbid an order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from nereus.layout.catalog import EndpointId
from nereus.spec.stages import ROLES, role_of

Order = list[int]
"""Tasks by number, each after all that it waits for."""


@cache
def stage_rank(stage: str) -> tuple[int, str]:
    """The place of a model-stage in the tie order: generation, inference, training, others (paper, section 6)."""
    role = role_of(stage)
    return (ROLES.index(role) if role is not None else len(ROLES), stage)


@dataclass(frozen=True, slots=True)
class Task:
    """One operation."""

    stage: str
    is_release: bool
    """Whether it only releases, as a Destroy does."""
    members: tuple[EndpointId, ...]
    after: frozenset[int]
    """What must have ended before it starts: for its data, and for the devices that exclusive model-stages give up."""
    takes: Mapping[EndpointId, int] = field(default_factory=dict)
    """Bytes above what was held before, from its start on."""
    gives: Mapping[EndpointId, int] = field(default_factory=dict)
    """Bytes given back at its end."""
    seconds: float = 0.0
    uplinks: Mapping[str, float] = field(default_factory=dict)
    """Share of each node's uplink that it takes while it runs."""

    @property
    def transient(self) -> int:
        """Bytes that it takes only while it runs, on the worst device."""
        return max((min(size, self.gives.get(endpoint, 0)) for endpoint, size in self.takes.items()), default=0)

    @property
    def never_grows(self) -> bool:
        """Whether no device holds more after it than before."""
        return all(size <= self.gives.get(endpoint, 0) for endpoint, size in self.takes.items())


@dataclass(frozen=True, slots=True)
class Problem:
    """What has to be put in order."""

    tasks: tuple[Task, ...]
    held: Mapping[EndpointId, int] = field(default_factory=dict)
    """Bytes on each endpoint before the first task."""
    usable_bytes: float = float("inf")


class Use(NamedTuple):
    """What a task takes and gives on a device."""

    task: int
    takes: int
    gives: int


class Device(NamedTuple):
    """Endpoints that see the same memory, by the first of them."""

    endpoint: EndpointId
    held: int
    uses: tuple[Use, ...]


def binding(problem: Problem) -> tuple[Device, ...]:
    """The devices on which all that is taken, with nothing given back, does not fit."""
    level: defaultdict[EndpointId, int] = defaultdict(int, problem.held)
    for task in problem.tasks:
        for endpoint, size in task.takes.items():
            level[endpoint] += size
    over = {endpoint for endpoint, size in level.items() if size > problem.usable_bytes}
    if not over:
        return ()
    uses: defaultdict[EndpointId, list[Use]] = defaultdict(list)
    for index, task in enumerate(problem.tasks):
        for endpoint in {**task.takes, **task.gives}:
            if endpoint in over:
                uses[endpoint].append(Use(index, task.takes.get(endpoint, 0), task.gives.get(endpoint, 0)))
    found: dict[tuple[int, tuple[Use, ...]], Device] = {}
    for endpoint, of_endpoint in uses.items():
        key = problem.held.get(endpoint, 0), tuple(of_endpoint)
        found.setdefault(key, Device(endpoint, *key))
    return tuple(found.values())
