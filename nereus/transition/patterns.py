"""Movements that are the same up to names are compiled once: the hundred replicas of a model-stage all split alike.

    movement -> its pattern (endpoints and units numbered) -> compiled, or known -> named again

Numbers keep the order of the names, so that what depends on it comes out as if the movement had been compiled itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from nereus.emu.primitives import Destroy, Extend, Merge, Primitive, Split
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, Site, StateSpec, UnitId, by_number
from nereus.layout.moves import Move, NodeOf
from nereus.transition.collectives import AllGather, Exchange, GroupKey, Pairwise, Part
from nereus.transition.movement import Movement

Moves = tuple[Move, ...]


class Compiled(NamedTuple):
    """What a movement comes down to."""

    handovers: Moves
    copies: Moves
    exchanges: tuple[Exchange, ...]


Compiler = Callable[[Movement, StateSpec, NodeOf], Compiled]


def movement_of_pattern(movement: Movement, state: StateSpec, node_of: NodeOf, compile_: Compiler) -> Compiled:
    """What `compile_` makes of a movement, by way of its pattern."""
    emus = {emu.unit: emu for emu in (*movement.reads, *movement.resident, *movement.makes)}
    for primitive in movement.primitives:
        emus.update({emu.unit: emu for emu in (*primitive.reads, *primitive.makes, *primitive.ends)})
    endpoints = sorted({endpoint for emu in emus.values() for endpoint in emu.endpoints}, key=by_number)
    units = sorted(emus)
    number = {endpoint: f"{index:06d}" for index, endpoint in enumerate(endpoints)}
    unit_number = {unit: UnitId("", index, 0) for index, unit in enumerate(units)}
    numbered = {
        unit: Emu(unit_number[unit], emu.layout, tuple(number[e] for e in emu.endpoints), emu.optimizer)
        for unit, emu in emus.items()
    }
    nodes: dict[int | None, int] = {}
    where = tuple(nodes.setdefault(node_of.get(endpoint), len(nodes)) for endpoint in endpoints)
    pattern = Movement(
        primitives=tuple(_numbered(primitive, numbered) for primitive in movement.primitives),
        reads=tuple(numbered[emu.unit] for emu in movement.reads),
        resident=tuple(numbered[emu.unit] for emu in movement.resident),
        makes=tuple(numbered[emu.unit] for emu in movement.makes),
        frees=(),
        ends=frozenset(unit_number[unit] for unit in movement.ends),
    )
    return _named(_compiled(pattern, state, where, compile_), endpoints, units)


@lru_cache(maxsize=256)
def _compiled(pattern: Movement, state: StateSpec, where: tuple[int, ...], compile_: Compiler) -> Compiled:
    return compile_(pattern, state, {f"{index:06d}": node for index, node in enumerate(where)})


def _numbered(primitive: Primitive, numbered: dict[UnitId, Emu]) -> Primitive:
    def of(emus: tuple[Emu, ...]) -> tuple[Emu, ...]:
        return tuple(numbered[emu.unit] for emu in emus)

    match primitive:
        case Split(source, parts):
            return Split(numbered[source.unit], of(parts))
        case Merge(parts, result):
            return Merge(of(parts), numbered[result.unit])
        case Extend(source, replica):
            return Extend(numbered[source.unit], numbered[replica.unit])
        case Destroy(target):
            return Destroy(numbered[target.unit])


def _named(compiled: Compiled, endpoints: list[EndpointId], units: list[UnitId]) -> Compiled:
    """The compiled pattern with names instead of numbers."""
    sites: dict[Site, Site] = {}

    def site(numbered: Site) -> Site:
        if numbered not in sites:
            sites[numbered] = Site(endpoints[int(numbered.endpoint)], units[numbered.unit.index])
        return sites[numbered]

    def named(moves: Moves) -> Moves:
        return tuple([Move(tensors, box, site(a), site(b), wave) for tensors, box, a, b, wave in moves])

    def group(key: GroupKey) -> GroupKey:
        return GroupKey(tuple(endpoints[int(member)] for member in key.members), key.lane)

    def exchange(known: Exchange) -> Exchange:
        if isinstance(known, Pairwise):
            return Pairwise(group(known.group), named(known.moves))
        parts = tuple(tuple([Part(tensors, box, units[unit.index]) for tensors, box, unit in each]) for each in known.parts)
        return AllGather(group(known.group), parts, tuple(units[unit.index] for unit in known.targets))

    handovers, copies, exchanges = compiled
    return Compiled(named(handovers), named(copies), tuple(exchange(known) for known in exchanges))
