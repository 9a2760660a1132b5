"""Which primitives move state together, so that nothing is held or sent that the target does not need.

    local DAG -> movements: sources -> target units, and what each releases

Units that a transition makes only to use them up (the parts of a Split that are merged again) are never held: the steps
that make and read them become one movement from the units that stand to those that will. Unfused, each step is a movement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace

from nereus.emu.primitives import Destroy, Primitive, Split
from nereus.emu.unit import Emu
from nereus.layout.catalog import Site, UnitId
from nereus.transition.local import LocalDag

SitesRead = Callable[["Movement"], set[Site]]


@dataclass(frozen=True, slots=True)
class Movement:
    """One or more steps of a local DAG that are carried out as one operation."""

    primitives: tuple[Primitive, ...]
    reads: tuple[Emu, ...]
    """Units that it may read from anywhere."""
    resident: tuple[Emu, ...]
    """Units that it may read where its targets are: what they hold is copied, not sent."""
    makes: tuple[Emu, ...]
    frees: tuple[Site, ...]
    after: frozenset[int] = frozenset()
    """The movements that it waits for, by index."""
    ends: frozenset[UnitId] = frozenset()
    """Those of the units that it may read which the transition ends: their shards may change hands."""

    @property
    def stage(self) -> str:
        """The model-stage that it belongs to."""
        return self.makes[0].stage if self.makes else self.frees[0].unit.stage

    def reader(self) -> Callable[[Site], bool]:
        """Whether something may be read at a site."""
        read = {emu.unit for emu in self.reads}
        resident = {emu.unit for emu in self.resident}
        targets = {endpoint for emu in self.makes for endpoint in emu.endpoints}
        return lambda site: site.unit in read or (site.endpoint in targets and site.unit in resident)


def unfused(dag: LocalDag) -> tuple[Movement, ...]:
    """A movement for each step, as the paper has them: what each makes is a copy of its own.

    A Destroy of a part of a Split releases what its endpoints had of the whole as well: they are given up.
    """
    maker = {emu.unit: step.primitive for step in dag.steps for emu in step.primitive.makes}

    def released(primitive: Primitive) -> tuple[Site, ...]:
        if not isinstance(primitive, Destroy):
            return ()
        made = maker.get(primitive.target.unit)
        whole = made.source.unit if isinstance(made, Split) else None
        given_up = tuple(Site(endpoint, whole) for endpoint in primitive.target.endpoints) if whole is not None else ()
        return (*_sites(primitive.ends), *given_up)

    return tuple(
        Movement((step.primitive,), step.primitive.reads, (), step.primitive.makes, released(step.primitive), step.after)
        for step in dag.steps
    )


def fused(dag: LocalDag, current: tuple[Emu, ...], sites_read: SitesRead) -> tuple[Movement, ...]:
    """Movements without any unit that is neither there before the transition nor after it.

    `sites_read` tells where a movement reads, so that what releases these sites waits for it.
    """
    standing, staying = {emu.unit for emu in current}, {emu.unit for emu in dag.result}
    maker = {emu.unit: index for index, step in enumerate(dag.steps) for emu in step.primitive.makes}
    groups = _Groups(len(dag.steps))
    used = set(staying)
    for index, step in enumerate(dag.steps):
        for emu in step.primitive.reads:
            used.add(emu.unit)
            if emu.unit in maker and emu.unit not in staying:
                groups.join(maker[emu.unit], index)
    for index, step in enumerate(dag.steps):
        # A unit that is split only to be destroyed is destroyed.
        for emu in step.primitive.ends if isinstance(step.primitive, Destroy) else ():
            made = maker.get(emu.unit)
            if made is not None and used.isdisjoint(part.unit for part in dag.steps[made].primitive.makes):
                groups.join(made, index)
    members: dict[int, list[int]] = {}
    for index in range(len(dag.steps)):
        members.setdefault(groups.of(index), []).append(index)
    place = {step: position for position, steps in enumerate(members.values()) for step in steps}
    movements = []
    for steps in members.values():
        primitives = tuple(dag.steps[index].primitive for index in steps)
        makes = _unique(emu for p in primitives for emu in p.makes if emu.unit in staying)
        reads = _unique(emu for p in primitives for emu in p.reads if emu.unit in standing or emu.unit in staying)
        resident = _on(current, makes)
        frees = _released(primitives, dag, maker, standing)
        ends = _ending((*reads, *resident), staying)
        movements.append(Movement(primitives, reads, resident, makes, frees, ends=ends))
    return _ordered(movements, dag, place, sites_read)


def resharded(dag: LocalDag, current: tuple[Emu, ...], result: tuple[Emu, ...]) -> tuple[Movement, ...]:
    """All of a local DAG as one movement, for optimizer state that is sharded over the replicas, and the release after it.

    Then no replica is complete, and each change of DP changes what every one of them keeps.
    """
    kept = {endpoint for emu in result for endpoint in emu.endpoints}
    given_up = tuple(site for site in _sites(current) if site.endpoint not in kept)
    moving = tuple(step.primitive for step in dag.steps if not (given_up and isinstance(step.primitive, Destroy)))
    destroys = tuple(step.primitive for step in dag.steps if isinstance(step.primitive, Destroy))
    ends = _ending(current, {emu.unit for emu in result})
    reshard = Movement(moving, current, (), result, (), ends=ends)
    return (reshard, Movement(destroys, (), (), (), given_up, frozenset((0,)))) if given_up else (reshard,)


class _Groups:
    """Steps that belong together, each group named by its first."""

    def __init__(self, count: int) -> None:
        self._next = list(range(count))

    def of(self, index: int) -> int:
        while self._next[index] != index:
            index = self._next[index]
        return index

    def join(self, a: int, b: int) -> None:
        first, second = sorted((self.of(a), self.of(b)))
        self._next[second] = first


def _ordered(movements: list[Movement], dag: LocalDag, place: dict[int, int], sites_read: SitesRead) -> tuple[Movement, ...]:
    """Data first: what reads a unit goes before what releases it, and after what makes it. An endpoint that is released for
    another step of the same model-stage is waited for where that makes no circle."""
    after: list[set[int]] = [set() for _ in movements]
    readers: dict[UnitId, list[int]] = {}
    freed_by: dict[Site, list[int]] = {}
    for index, movement in enumerate(movements):
        for emu in movement.reads:
            readers.setdefault(emu.unit, []).append(index)
        for site in movement.frees:
            freed_by.setdefault(site, []).append(index)
    for index, movement in enumerate(movements):
        made = [later for emu in movement.makes for later in readers.get(emu.unit, ())]
        read = sites_read(movement) if freed_by and movement.makes else set()
        for later in (*made, *[later for site in read for later in freed_by.get(site, ())]):
            if later != index:
                after[later].add(index)
    for step, done in enumerate(dag.steps):
        for before in done.after:
            first, second = place[before], place[step]
            if first != second and not _reaches(after, first, second):
                after[second].add(first)
    return tuple(replace(m, after=frozenset(waits)) for m, waits in zip(movements, after, strict=True))


def _reaches(after: list[set[int]], start: int, goal: int) -> bool:
    """Whether `start` waits for `goal`, directly or not."""
    waiting, seen = [start], set[int]()
    while waiting:
        index = waiting.pop()
        if index == goal:
            return True
        if index not in seen:
            seen.add(index)
            waiting.extend(after[index])
    return False


def _released(
    primitives: Iterable[Primitive], dag: LocalDag, maker: dict[UnitId, int], standing: set[UnitId]
) -> tuple[Site, ...]:
    """What the Destroys among these release: a unit, or, for a part that was never held, what its endpoints had before."""
    sites: list[Site] = []
    for primitive in primitives:
        if not isinstance(primitive, Destroy):
            continue
        if primitive.target.unit in standing:
            sites += _sites((primitive.target,))
            continue
        made = dag.steps[maker[primitive.target.unit]].primitive
        if isinstance(made, Split):
            sites += [Site(endpoint, made.source.unit) for endpoint in primitive.target.endpoints]
    return tuple(sites)


def _on(emus: Iterable[Emu], targets: Iterable[Emu]) -> tuple[Emu, ...]:
    """The units that have something on an endpoint of `targets`."""
    endpoints = {endpoint for emu in targets for endpoint in emu.endpoints}
    return tuple(emu for emu in emus if not endpoints.isdisjoint(emu.endpoints))


def _ending(emus: Iterable[Emu], staying: Set[UnitId]) -> frozenset[UnitId]:
    return frozenset(emu.unit for emu in emus if emu.unit not in staying)


def _sites(emus: Iterable[Emu]) -> tuple[Site, ...]:
    return tuple(Site(endpoint, emu.unit) for emu in emus for endpoint in emu.endpoints)


def _unique(emus: Iterable[Emu]) -> tuple[Emu, ...]:
    return tuple({emu.unit: emu for emu in emus}.values())
