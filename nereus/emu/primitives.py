"""Split, Merge, Extend and Destroy, as values with pre- and post-conditions (paper, section 5.2).

    Split(EMU, T_sub) -> {EMU_1 .. EMU_k}     same endpoints, k independent replicas of a smaller layout
    Merge({EMU_1 .. EMU_k}, T) -> EMU'        same endpoints, one unit of a larger layout
    Extend(EMU, R') -> {EMU, EMU'}            a replica on new endpoints; DP grows by one
    Destroy(EMU) -> {}                        a redundant replica goes; DP shrinks by one

A primitive says which units it reads, makes and ends. How the shards travel is compiled elsewhere (transition room).
Applying one to a collection checks its precondition, so that no sequence of primitives can lose the last copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from nereus.emu.unit import Emu
from nereus.errors import PreconditionError
from nereus.layout.catalog import EndpointId, UnitId
from nereus.layout.layout import Layout

Endpoints = tuple[EndpointId, ...]
EmuCollection = frozenset[Emu]
NewUnit = Callable[[], UnitId]
"""Names the next unit of the model-stage."""


@dataclass(frozen=True, slots=True)
class Split:
    """One unit becomes k replicas of `parts[0].layout` on the same endpoints."""

    source: Emu
    parts: tuple[Emu, ...]

    @classmethod
    def of(cls, source: Emu, sub: Layout, new_unit: NewUnit, wanted: Collection[Endpoints] = ()) -> Split:
        """Split `source` into units of layout `sub`.

        `wanted` are disjoint slots, endpoints in rank order of `sub`, that parts shall have; the other endpoints form the
        remaining parts, each rank where it already holds most of its new shard if that can be.
        """
        if not sub.divides(source.layout) or sub == source.layout:
            raise PreconditionError(f"Split: {source.unit} with {source.layout} cannot be split into {sub}")
        taken = {endpoint for slot in wanted for endpoint in slot}
        if not taken <= set(source.endpoints) or len(taken) != len(wanted) * sub.size:
            raise PreconditionError(f"Split: {sorted(wanted)} are no disjoint slots of {sub} inside {source.unit}")
        slots = (*wanted, *grouped(source, sub, [e for e in source.endpoints if e not in taken]))
        return cls(source, tuple(Emu(new_unit(), sub, endpoints) for endpoints in slots))

    @property
    def is_aligned(self) -> bool:
        """Whether every rank of every part sits where its old shard lies inside its new one: then positions gather alone.

        Rows of an fsdp rank are a share of those of its TP rank, so a change of tp moves them all.
        """
        sub, layout = self.parts[0].layout, self.source.layout
        return (layout.fsdp == 1 or layout.tp == sub.tp) and all(
            home(self.source, sub, endpoint) == rank for part in self.parts for rank, endpoint in enumerate(part.endpoints)
        )

    @property
    def stage(self) -> str:
        return self.source.stage

    @property
    def reads(self) -> tuple[Emu, ...]:
        return (self.source,)

    @property
    def makes(self) -> tuple[Emu, ...]:
        return self.parts

    @property
    def ends(self) -> tuple[Emu, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Merge:
    """k replicas become one unit of a larger layout on the same endpoints."""

    parts: tuple[Emu, ...]
    result: Emu

    @classmethod
    def of(cls, parts: tuple[Emu, ...], layout: Layout, new_unit: NewUnit) -> Merge:
        """Merge `parts`, replicas of one stage and layout, in the order of their slots in `layout`."""
        if not parts:
            raise PreconditionError("Merge: there is nothing to merge")
        sub = parts[0].layout
        if any(part.layout != sub or part.stage != parts[0].stage for part in parts):
            raise PreconditionError("Merge: the parts must be replicas of one model-stage with one layout")
        if not sub.divides(layout) or len(parts) * sub.size != layout.size or sub == layout:
            raise PreconditionError(f"Merge: {len(parts)} units of {sub} do not make one of {layout}")
        if len({e for part in parts for e in part.endpoints}) != layout.size:
            raise PreconditionError("Merge: the parts must be on disjoint endpoints")
        return cls(parts, Emu(new_unit(), layout, joined_slots([p.endpoints for p in parts], layout, sub)))

    @property
    def stage(self) -> str:
        return self.result.stage

    @property
    def reads(self) -> tuple[Emu, ...]:
        return self.parts

    @property
    def makes(self) -> tuple[Emu, ...]:
        return (self.result,)

    @property
    def ends(self) -> tuple[Emu, ...]:
        return self.parts


@dataclass(frozen=True, slots=True)
class Extend:
    """A replica of `source` on new endpoints; `source` stays.

    The endpoints may still hold a replica that is on its way out: whether both fit is the feasibility check's question.
    """

    source: Emu
    replica: Emu

    @classmethod
    def of(cls, source: Emu, endpoints: tuple[EndpointId, ...], new_unit: NewUnit) -> Extend:
        """Replicate `source` onto `endpoints`, rank by rank."""
        if set(endpoints) & set(source.endpoints):
            raise PreconditionError(f"Extend: {source.unit} already lives on some of {endpoints}")
        return cls(source, Emu(new_unit(), source.layout, endpoints))

    @property
    def stage(self) -> str:
        return self.source.stage

    @property
    def reads(self) -> tuple[Emu, ...]:
        return (self.source,)

    @property
    def makes(self) -> tuple[Emu, ...]:
        return (self.replica,)

    @property
    def ends(self) -> tuple[Emu, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Destroy:
    """A redundant replica ends; another one of the same model-stage must stay."""

    target: Emu

    @property
    def stage(self) -> str:
        return self.target.stage

    @property
    def reads(self) -> tuple[Emu, ...]:
        return ()

    @property
    def makes(self) -> tuple[Emu, ...]:
        return ()

    @property
    def ends(self) -> tuple[Emu, ...]:
        return (self.target,)


Primitive = Split | Merge | Extend | Destroy


def apply(collection: EmuCollection, primitive: Primitive) -> EmuCollection:
    """The collection after a primitive. Raises PreconditionError where the primitive is not defined."""
    name = type(primitive).__name__
    absent = [emu for emu in (*primitive.reads, *primitive.ends) if emu not in collection]
    if absent:
        raise PreconditionError(f"{name}: {absent[0].unit} is not in the collection")
    after = (collection - frozenset(primitive.ends)) | frozenset(primitive.makes)
    for ended in primitive.ends:
        if not any(emu.stage == ended.stage for emu in after):
            raise PreconditionError(f"{name}: {ended.unit} holds the last copy of {ended.stage}")
    return after


def home(emu: Emu, sub: Layout, endpoint: EndpointId) -> int:
    """The rank of layout `sub` whose shard encloses what `endpoint` holds of `emu`."""
    layout = emu.layout
    at = layout.coordinate(emu.rank_of(endpoint))
    return sub.rank(pp=at.pp * sub.pp // layout.pp, fsdp=at.fsdp * sub.fsdp // layout.fsdp, tp=at.tp * sub.tp // layout.tp)


def grouped(emu: Emu, sub: Layout, endpoints: Sequence[EndpointId]) -> tuple[Endpoints, ...]:
    """As many slots of layout `sub` as these endpoints of a unit fill, each rank at home where one is there for it."""
    at_home: list[list[EndpointId]] = [[] for _ in range(sub.size)]
    for endpoint in endpoints:
        at_home[home(emu, sub, endpoint)].append(endpoint)
    count = len(endpoints) // sub.size
    slots = [[held[index] if index < len(held) else None for held in at_home] for index in range(count)]
    spare = iter([endpoint for held in at_home for endpoint in held[count:]])
    return tuple(tuple(next(spare) if endpoint is None else endpoint for endpoint in slot) for slot in slots)


def sub_slots(endpoints: Endpoints, layout: Layout, sub: Layout) -> tuple[Endpoints, ...]:
    """The slots of layout `sub` that make up a unit of `layout`, in slot order (pp slowest, then fsdp, tp fastest).

    Rank (p', f', t') of slot (b, c, a) is rank (p' * kp + b, f' * kf + c, t' * kt + a) of the whole: the shard of the whole
    lies inside that of the slot, so a merge of such parts moves nothing.
    """
    kp, kf, kt = _factors(layout, sub)
    positions = [sub.coordinate(rank) for rank in range(sub.size)]
    return tuple(
        tuple(endpoints[layout.rank(pp=at.pp * kp + b, fsdp=at.fsdp * kf + c, tp=at.tp * kt + a)] for at in positions)
        for b in range(kp)
        for c in range(kf)
        for a in range(kt)
    )


def joined_slots(parts: Sequence[Endpoints], layout: Layout, sub: Layout) -> Endpoints:
    """The endpoints of the whole, in rank order, from its parts in slot order: the inverse of `sub_slots`."""
    kp, kf, kt = _factors(layout, sub)
    whole: list[EndpointId] = []
    for rank in range(layout.size):
        at = layout.coordinate(rank)
        part = parts[((at.pp % kp) * kf + at.fsdp % kf) * kt + at.tp % kt]
        whole.append(part[sub.rank(pp=at.pp // kp, fsdp=at.fsdp // kf, tp=at.tp // kt)])
    return tuple(whole)


def _factors(layout: Layout, sub: Layout) -> tuple[int, int, int]:
    """How many times `sub` goes into `layout` on the pp, fsdp and tp axes."""
    return layout.pp // sub.pp, layout.fsdp // sub.fsdp, layout.tp // sub.tp
