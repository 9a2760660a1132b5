"""The local DAG of one model-stage: Split -> Destroy -> Extend -> Merge (paper, section 6).

    current units --Split--> units of T_sub --Destroy, Extend--> one unit per target slot --Merge--> target units

The order is a priority, not a barrier: a primitive waits for the makers of the units that it reads and for the readers of
the units that it ends. The last copy of a model-stage is destroyed only after an Extend has copied it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.primitives import Destroy, Endpoints, Extend, Merge, Primitive, Split, sub_slots
from nereus.emu.unit import Emu
from nereus.errors import LayoutError
from nereus.layout.catalog import EndpointId, UnitId
from nereus.layout.layout import Layout
from nereus.layout.moves import NodeOf
from nereus.transition.sources import Sources


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive of a local DAG, and the indices of the steps that it waits for."""

    primitive: Primitive
    after: frozenset[int]


@dataclass(frozen=True, slots=True)
class Relay:
    """One replica survives and is copied once; all others are copied from that newborn one, or from those made of it.

    So every device of the old units but the survivor's is free at once, and the survivor's after one Extend.
    """

    survivor: Endpoints
    first: Endpoints
    """Where it is copied to: a slot of the target, or devices that it leaves again, a third place."""


@dataclass(slots=True)
class LocalDag:
    """The steps of one model-stage in their default order, and the units that stand at the end, in replica order."""

    steps: list[Step] = field(default_factory=list)
    result: tuple[Emu, ...] = ()
    sources: tuple[Endpoints, ...] = ()
    """Where no unit stays, the units that a relay may start from; a unit that stays is the source of all Extends."""
    slots: tuple[Endpoints, ...] = ()
    """Of the target, in the common layout."""
    _maker: dict[UnitId, int] = field(default_factory=dict)
    _freed_by: dict[EndpointId, int] = field(default_factory=dict)
    _readers: dict[UnitId, set[int]] = field(default_factory=dict)

    def add(self, primitive: Primitive) -> None:
        """Append a primitive; its edges follow from the units that it reads and ends, and from the endpoints it acquires."""
        index = len(self.steps)
        needs = {emu.unit for emu in (*primitive.reads, *primitive.ends)}
        after = {self._maker[unit] for unit in needs if unit in self._maker}
        for emu in primitive.ends:
            after |= self._readers.get(emu.unit, set())
        for emu in primitive.reads:
            self._readers.setdefault(emu.unit, set()).add(index)
        for emu in primitive.makes:
            self._maker[emu.unit] = index
        if isinstance(primitive, Extend):
            after |= {self._freed_by[e] for e in primitive.replica.endpoints if e in self._freed_by}
        if isinstance(primitive, Destroy):
            self._freed_by.update(dict.fromkeys(primitive.target.endpoints, index))
        self.steps.append(Step(primitive, frozenset(after)))


def local_dag(
    current: tuple[Emu, ...],
    target: StagePlan,
    endpoint_of: Mapping[DeviceId, EndpointId],
    birth_epoch: int,
    node_of: NodeOf | None = None,
    relay: Relay | None = None,
) -> LocalDag:
    """The primitives that turn `current` into Phi(target), by way of a relay if one is given.

    A unit of T_sub stays where its endpoints are, in order, a slot of the target; every other slot is filled by an Extend
    from a replica that stays, if there is one. Where no replica is disjoint from a slot, so that none could be extended
    onto it, a smaller common layout is taken: with units of one device there always is one.
    """
    *larger, smallest = _common_layouts(current[0].layout.common(target.layout))
    for sub in larger:
        try:
            return _dag_through(sub, current, target, endpoint_of, birth_epoch, node_of or {}, relay)
        except LayoutError:
            continue
    return _dag_through(smallest, current, target, endpoint_of, birth_epoch, node_of or {}, relay)


def _common_layouts(largest: Layout) -> list[Layout]:
    """The layouts into which the largest common one can be split, itself first: pp goes before tp, which stays in a node."""
    divisors = [
        Layout(tp, pp, fsdp)
        for tp in _divisors(largest.tp)
        for pp in _divisors(largest.pp)
        for fsdp in _divisors(largest.fsdp)
    ]
    return sorted(divisors, key=lambda layout: (-layout.size, -layout.tp, -layout.fsdp))


def _divisors(degree: int) -> list[int]:
    return [divisor for divisor in range(1, degree + 1) if degree % divisor == 0]


def _dag_through(
    sub: Layout,
    current: tuple[Emu, ...],
    target: StagePlan,
    endpoint_of: Mapping[DeviceId, EndpointId],
    birth_epoch: int,
    node_of: NodeOf,
    relay: Relay | None,
) -> LocalDag:
    """The primitives by way of units of layout `sub`. Raises LayoutError where no replica is disjoint from a slot."""
    dag, names = LocalDag(), _UnitNames(target.stage, birth_epoch)
    slots = [
        slot
        for group in target.groups
        for slot in sub_slots(tuple(endpoint_of[device] for device in group), target.layout, sub)
    ]
    units = list(current) if sub == current[0].layout else _split_all(dag, current, sub, slots, names)
    wanted = set(slots)
    filled = {emu.endpoints: emu for emu in units if emu.endpoints in wanted}
    redundant = [emu for emu in units if filled.get(emu.endpoints) is not emu]
    dag.sources = () if filled else tuple(emu.endpoints for emu in redundant)
    dag.slots = tuple(slots)
    if relay is not None and relay.survivor in dag.sources:
        filled = _relayed(dag, redundant, relay, names, node_of)
    else:
        _copied(dag, filled, redundant, names, node_of)
    parts = [filled[slot] for slot in slots]
    dag.result = tuple(parts) if sub == target.layout else _merge_all(dag, parts, names, target)
    return dag


def _copied(dag: LocalDag, filled: dict[Endpoints, Emu], redundant: list[Emu], names: _UnitNames, node_of: NodeOf) -> None:
    """Destroy what is redundant, and extend from the units that stay, or, if there is none, from those that go."""
    extends = _extends(
        list(filled.values()) or redundant, [slot for slot in dag.slots if slot not in filled], names, node_of
    )
    read = {extend.source.unit for extend in extends}
    for emu in redundant:
        if emu.unit not in read:
            dag.add(Destroy(emu))
    for extend in extends:
        dag.add(extend)
        filled[extend.replica.endpoints] = extend.replica
    for emu in redundant:
        if emu.unit in read:
            dag.add(Destroy(emu))


def _relayed(dag: LocalDag, redundant: list[Emu], relay: Relay, names: _UnitNames, node_of: NodeOf) -> dict[Endpoints, Emu]:
    """Destroy all but the survivor, which goes as soon as it was copied; the units of the slots."""
    survivor = next(emu for emu in redundant if emu.endpoints == relay.survivor)
    for emu in redundant:
        if emu is not survivor:
            dag.add(Destroy(emu))
    first = Extend.of(survivor, relay.first, names.next)
    dag.add(first)
    dag.add(Destroy(survivor))
    filled = {first.replica.endpoints: first.replica}
    for extend in _extends([first.replica], [slot for slot in dag.slots if slot != relay.first], names, node_of):
        dag.add(extend)
        filled[extend.replica.endpoints] = extend.replica
    if relay.first not in dag.slots:
        dag.add(Destroy(first.replica))
    return filled


def _split_all(dag: LocalDag, current: tuple[Emu, ...], sub: Layout, slots: list[Endpoints], names: _UnitNames) -> list[Emu]:
    """Split every unit, so that slots of the target that lie inside one become parts of it."""
    units: list[Emu] = []
    for emu in current:
        split = Split.of(emu, sub, names.next, [slot for slot in slots if set(slot) <= set(emu.endpoints)])
        dag.add(split)
        units.extend(split.parts)
    return units


def _extends(sources: list[Emu], slots: list[Endpoints], names: _UnitNames, node_of: NodeOf) -> list[Extend]:
    """An Extend for each slot, from whichever replica is free first, near ones before far ones; newborn ones copy on.

    So one replica feeds several as a tree: the time grows with the logarithm of their number. Raises LayoutError where no
    replica is disjoint from a slot.
    """
    known, waiting = Sources(sources, node_of), list(slots)
    extends: list[Extend] = []
    while waiting:
        slot = next((slot for slot in waiting if known.can_fill(slot)), None)
        if slot is None:
            raise LayoutError(
                f"{sources[0].stage}: no replica is disjoint from {list(waiting[0])}, so none can be extended onto it; "
                "choose devices that keep one unit whole, or change in two steps"
            )
        waiting.remove(slot)
        source, free_at = known.take(slot)
        extends.append(Extend.of(source, slot, names.next))
        known.add(extends[-1].replica, free_at)
    return extends


def _merge_all(dag: LocalDag, parts: list[Emu], names: _UnitNames, target: StagePlan) -> tuple[Emu, ...]:
    per_unit = len(parts) // target.dp
    result: list[Emu] = []
    for index in range(target.dp):
        merge = Merge.of(tuple(parts[index * per_unit : (index + 1) * per_unit]), target.layout, names.next)
        dag.add(merge)
        result.append(merge.result)
    return tuple(result)


@dataclass(slots=True)
class _UnitNames:
    """Names the units that a transition makes; within an epoch each index of a model-stage is given once."""

    stage: str
    birth_epoch: int
    _next: int = 0

    def next(self) -> UnitId:
        unit = UnitId(self.stage, self._next, self.birth_epoch)
        self._next += 1
        return unit
