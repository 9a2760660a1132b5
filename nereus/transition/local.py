"""The local DAG of one model-stage: Split -> Destroy -> Extend -> Merge (paper, section 6).

    current units --Split--> units of T_sub --Destroy, Extend--> one unit per target slot --Merge--> target units

The order is a priority, not a barrier: a primitive waits for the makers of the units that it reads and for the readers of
the units that it ends. The last copy of a model-stage is destroyed only after an Extend has copied it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.primitives import Destroy, Extend, Merge, Primitive, Split, sub_slots
from nereus.emu.unit import Emu
from nereus.errors import LayoutError
from nereus.layout.catalog import EndpointId, UnitId
from nereus.transition.lowering import SameNode


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive of a local DAG, and the indices of the steps that it waits for."""

    primitive: Primitive
    after: frozenset[int]


@dataclass(slots=True)
class LocalDag:
    """The steps of one model-stage in their default order, and the units that stand at the end, in replica order."""

    steps: list[Step] = field(default_factory=list)
    result: tuple[Emu, ...] = ()
    _maker: dict[UnitId, int] = field(default_factory=dict)
    _readers: dict[UnitId, set[int]] = field(default_factory=dict)

    def add(self, primitive: Primitive) -> None:
        """Append a primitive; its edges follow from the units that it reads and ends."""
        index = len(self.steps)
        needs = {emu.unit for emu in (*primitive.reads, *primitive.ends)}
        after = {self._maker[unit] for unit in needs if unit in self._maker}
        for emu in primitive.ends:
            after |= self._readers.get(emu.unit, set())
        for emu in primitive.reads:
            self._readers.setdefault(emu.unit, set()).add(index)
        for emu in primitive.makes:
            self._maker[emu.unit] = index
        self.steps.append(Step(primitive, frozenset(after)))

    def num_readers(self, emu: Emu) -> int:
        return len(self._readers.get(emu.unit, ()))


def local_dag(
    current: tuple[Emu, ...],
    target: StagePlan,
    endpoint_of: Mapping[DeviceId, EndpointId],
    birth_epoch: int,
    same_node: SameNode = lambda a, b: True,
) -> LocalDag:
    """The primitives that turn `current` into Phi(target).

    A unit of T_sub stays where its endpoints are, in order, a slot of the target; every other slot is filled by an Extend
    from an intact replica, one that stays if there is one. Raises LayoutError where no replica is disjoint from a slot.
    """
    dag, names = LocalDag(), _UnitNames(target.stage, birth_epoch)
    sub = current[0].layout.common(target.layout)
    units = _split_all(dag, current, names, sub != current[0].layout, target)
    slots = [
        slot
        for group in target.groups
        for slot in sub_slots(tuple(endpoint_of[device] for device in group), target.layout, sub)
    ]
    wanted = set(slots)
    filled = {emu.endpoints: emu for emu in units if emu.endpoints in wanted}
    redundant = [emu for emu in units if filled.get(emu.endpoints) is not emu]
    sources = list(filled.values()) or [_survivor(redundant, slots)]
    for emu in redundant:
        if emu not in sources:
            dag.add(Destroy(emu))
    for slot in slots:
        if slot not in filled:
            extend = Extend.of(_nearest(dag, sources, slot, same_node), slot, names.next)
            dag.add(extend)
            filled[slot] = extend.replica
    for emu in redundant:
        if emu in sources:
            dag.add(Destroy(emu))
    parts = [filled[slot] for slot in slots]
    dag.result = tuple(parts) if sub == target.layout else _merge_all(dag, parts, names, target)
    return dag


def _split_all(dag: LocalDag, current: tuple[Emu, ...], names: _UnitNames, needed: bool, target: StagePlan) -> list[Emu]:
    if not needed:
        return list(current)
    units: list[Emu] = []
    for emu in current:
        split = Split.of(emu, emu.layout.common(target.layout), names.next)
        dag.add(split)
        units.extend(split.parts)
    return units


def _merge_all(dag: LocalDag, parts: list[Emu], names: _UnitNames, target: StagePlan) -> tuple[Emu, ...]:
    per_unit = len(parts) // target.dp
    result: list[Emu] = []
    for index in range(target.dp):
        merge = Merge.of(tuple(parts[index * per_unit : (index + 1) * per_unit]), target.layout, names.next)
        dag.add(merge)
        result.append(merge.result)
    return tuple(result)


def _survivor(units: list[Emu], slots: list[tuple[EndpointId, ...]]) -> Emu:
    """The unit to copy from when none stays: the one least in the way of the new ones, then the first."""
    return min(units, key=lambda emu: (sum(bool(set(emu.endpoints) & set(slot)) for slot in slots), emu.unit))


def _nearest(dag: LocalDag, sources: list[Emu], slot: tuple[EndpointId, ...], same_node: SameNode) -> Emu:
    """The source of an Extend: disjoint from the slot, read the least so far, near."""
    disjoint = [emu for emu in sources if not set(emu.endpoints) & set(slot)]
    if not disjoint:
        raise LayoutError(
            f"{sources[0].stage}: no replica is disjoint from {list(slot)}, so none can be extended onto it; "
            "choose devices that keep one unit whole, or change in two steps"
        )

    def cost(emu: Emu) -> tuple[int, int, UnitId]:
        far = sum(not same_node(a, b) for a, b in zip(emu.endpoints, slot, strict=True))
        return dag.num_readers(emu), far, emu.unit

    return min(disjoint, key=cost)


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
