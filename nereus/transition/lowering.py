"""Primitives to moves, moves to collectives (paper, section 6.1).

Split    position-wise AllGather in the smallest enclosing TP/PP group
Merge    local slices; what a target rank does not hold (uneven layouts) in pairs
Extend   one communicator per rank pair, each shard once, pairs concurrent
Destroy  nothing
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from nereus.emu.primitives import Destroy, Extend, Primitive, Split
from nereus.emu.unit import Emu, catalog
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.moves import Move, minimal_moves
from nereus.transition.ops import TRANSFER, AllGather, Exchange, GroupKey, Op, Pairwise, Part

Moves = tuple[Move, ...]
SameNode = Callable[[EndpointId, EndpointId], bool]


def lower(primitive: Primitive, state: StateSpec, op_id: str, after: tuple[str, ...], same_node: SameNode) -> Op:
    """Compile one primitive to an operation."""
    copies, exchanges = _movement(primitive, state, same_node)
    return Op(
        id=op_id,
        primitive=type(primitive).__name__,
        stage=primitive.stage,
        makes=primitive.makes,
        ends=primitive.ends,
        copies=copies,
        exchanges=exchanges,
        after=after,
    )


def _movement(primitive: Primitive, state: StateSpec, same_node: SameNode) -> tuple[Moves, tuple[Exchange, ...]]:
    if isinstance(primitive, Destroy):
        return (), ()
    if isinstance(primitive, Split) and primitive.is_aligned:
        return _position_gathers(primitive, state, same_node)
    if isinstance(primitive, Extend):
        return (), _rank_pairs(primitive, state)
    copies, wire = _by_reach(minimal_moves(catalog(state, primitive.reads), catalog(state, primitive.makes), same_node))
    return copies, _pairwise(wire)


def lower_sync(
    sources: tuple[Emu, ...],
    source_state: StateSpec,
    targets: tuple[Emu, ...],
    target_state: StateSpec,
    op_id: str,
    same_node: SameNode,
) -> Op:
    """A weight sync: what live units hold, written into other live units by the same moves (paper, section 4.1)."""
    moves = minimal_moves(catalog(source_state, sources), catalog(target_state, targets), same_node)
    copies, wire = _by_reach(moves)
    return Op(op_id, "WeightSync", targets[0].stage, (), (), copies, _pairwise(wire), ())


def _by_reach(moves: Moves) -> tuple[Moves, Moves]:
    """Local copies, and what crosses between endpoints."""
    return tuple(m for m in moves if m.is_local), tuple(m for m in moves if not m.is_local)


def _pairwise(wire: Moves) -> tuple[Exchange, ...]:
    if not wire:
        return ()
    members = {site.endpoint for move in wire for site in (move.source, move.target)}
    return (Pairwise(GroupKey.of(members, TRANSFER), wire),)


def _rank_pairs(extend: Extend, state: StateSpec) -> tuple[Exchange, ...]:
    """One exchange per rank of the source and its replica: each shard crosses once, whole."""
    before, after = catalog(state, extend.reads), catalog(state, extend.makes)
    return tuple(
        Pairwise(GroupKey.of((source, replica), TRANSFER), minimal_moves(before.at([source]), after.at([replica])))
        for source, replica in zip(extend.source.endpoints, extend.replica.endpoints, strict=True)
    )


def _position_gathers(split: Split, state: StateSpec, same_node: SameNode) -> tuple[Moves, tuple[Exchange, ...]]:
    """One AllGather per position of the smaller layout; what not every member of it needs travels in pairs."""
    before, after = catalog(state, split.reads), catalog(state, split.makes)
    copies: list[Move] = []
    exchanges: list[Exchange] = []
    for position in range(split.parts[0].layout.size):
        unit_at = {part.endpoints[position]: part.unit for part in split.parts}
        local, wire = _by_reach(minimal_moves(before.at(unit_at), after.at(unit_at), same_node))
        copies.extend(local)
        readers: dict[tuple[EndpointId, Part], list[Move]] = defaultdict(list)
        for move in wire:
            readers[move.source.endpoint, Part(move.tensor, move.box, move.source.unit)].append(move)
        group = GroupKey.of(unit_at, TRANSFER)
        gathered = {key for key, moves in readers.items() if len(moves) == len(unit_at) - 1}
        if gathered:
            parts = tuple(tuple(p for e, p in readers if e == member and (e, p) in gathered) for member in group.members)
            exchanges.append(AllGather(group, parts, tuple(unit_at[e] for e in group.members)))
        exchanges.extend(_pairwise(tuple(m for key, moves in readers.items() if key not in gathered for m in moves)))
    return tuple(copies), tuple(exchanges)
