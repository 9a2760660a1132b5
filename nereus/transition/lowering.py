"""Movements to moves, moves to collectives (paper, section 6.1).

Split          position-wise AllGather in the smallest enclosing TP/PP group
Merge          whole shards change hands, others are local slices; what a rank does not hold (uneven layouts) in pairs
Extend         one communicator per rank pair, each shard once, pairs concurrent
Split+Merge .. fused: only what the target units lack, in pairs
Destroy        nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nereus.emu.primitives import Extend, Split
from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, Site, StateSpec, UnitId
from nereus.layout.moves import Move, NodeOf, minimal_moves
from nereus.layout.tensors import TensorRef
from nereus.transition.collectives import TRANSFER, AllGather, Exchange, GroupKey, Pairwise, Part
from nereus.transition.handover import handed_over
from nereus.transition.messages import message_bytes
from nereus.transition.movement import Movement
from nereus.transition.ops import Op
from nereus.transition.patterns import Compiled, Moves, movement_of_pattern

NOTHING = Compiled((), (), ())
"""Of a movement that only releases."""


def lower(
    movement: Movement, state: StateSpec, op_id: str, after: tuple[str, ...], node_of: NodeOf, bucket_bytes: int
) -> Op:
    """Compile one movement to an operation."""
    compiled = movement_of_pattern(movement, state, node_of, compile_movement) if movement.makes else NOTHING
    return Op(
        id=op_id,
        primitives=tuple(type(primitive).__name__ for primitive in movement.primitives),
        stage=movement.stage,
        makes=movement.makes,
        frees=movement.frees,
        copies=compiled.copies,
        exchanges=compiled.exchanges,
        after=after,
        handovers=compiled.handovers,
        bucket_bytes=bucket_bytes,
        message_bytes=message_bytes(compiled.exchanges, bucket_bytes),
    )


def sites_read(movement: Movement, state: StateSpec, node_of: NodeOf) -> set[Site]:
    """Where a movement reads."""
    handovers, copies, exchanges = movement_of_pattern(movement, state, node_of, compile_movement)
    return {move.source for move in (*handovers, *copies)}.union(*(exchange.sources for exchange in exchanges))


def compile_movement(movement: Movement, state: StateSpec, node_of: NodeOf) -> Compiled:
    """What a movement comes down to, whether one like it was compiled before or not."""
    units = {emu.unit: emu for emu in (*movement.reads, *movement.resident)}.values()
    sources, targets = Catalog.of(state, units).where(movement.reader()), Catalog.of(state, movement.makes)
    local, exchanges = _carried(movement, sources, targets, node_of)
    return Compiled(*handed_over(local, sources, targets, movement.ends), exchanges)


def _carried(movement: Movement, sources: Catalog, targets: Catalog, node_of: NodeOf) -> tuple[Moves, tuple[Exchange, ...]]:
    """What is there already, and the exchanges for the rest."""
    primitive = movement.primitives[0] if len(movement.primitives) == 1 else None
    if primitive is not None and primitive.makes == movement.makes:
        if isinstance(primitive, Split) and primitive.is_aligned:
            return _position_gathers(primitive, sources, targets, node_of)
        if isinstance(primitive, Extend):
            return _rank_pairs(primitive, sources, targets)
    local, wire = by_reach(minimal_moves(sources, targets, node_of))
    return local, pairwise(wire)


def lower_sync(
    sources: tuple[Emu, ...],
    source_state: StateSpec,
    targets: tuple[Emu, ...],
    target_state: StateSpec,
    op_id: str,
    node_of: NodeOf,
    bucket_bytes: int,
) -> Op:
    """A weight sync: what live units hold, written into other live units by the same moves (paper, section 4.1).

    Frozen tensors are left out, since every unit has them from its birth; what a node lacks crosses to it once.
    """
    wanted = Catalog.of(target_state, targets).trained()
    moves = minimal_moves(Catalog.of(source_state, sources), wanted, node_of, relay=True)
    copies, wire = by_reach(moves)
    exchanges = pairwise(wire)
    return Op(
        id=op_id,
        primitives=("WeightSync",),
        stage=targets[0].stage,
        makes=(),
        frees=(),
        copies=copies,
        exchanges=exchanges,
        after=(),
        bucket_bytes=bucket_bytes,
        message_bytes=message_bytes(exchanges, bucket_bytes),
    )


def by_reach(moves: Moves) -> tuple[Moves, Moves]:
    """What stays on its endpoint, and what crosses to another."""
    return tuple(m for m in moves if m.is_local), tuple(m for m in moves if not m.is_local)


def pairwise(wire: Moves) -> tuple[Exchange, ...]:
    """One exchange per wave, on the communicator of all that take part in it."""
    exchanges = []
    for wave in sorted({move.wave for move in wire}):
        moves = tuple(move for move in wire if move.wave == wave)
        members = {site.endpoint for move in moves for site in (move.source, move.target)}
        exchanges.append(Pairwise(GroupKey.of(members, TRANSFER), moves))
    return tuple(exchanges)


def _rank_pairs(extend: Extend, sources: Catalog, targets: Catalog) -> tuple[Moves, tuple[Exchange, ...]]:
    """One exchange per rank of the source and its replica: what the replica's endpoint lacks of the shard, once."""
    source_of = dict(zip(extend.replica.endpoints, extend.source.endpoints, strict=True))

    def aligned(source: Site, target: Site) -> bool:
        return source.endpoint == source_of[target.endpoint] and source.unit == extend.source.unit

    copies, wire = by_reach(minimal_moves(sources, targets, reach=aligned))
    moves: dict[EndpointId, list[Move]] = {}
    for move in wire:
        moves.setdefault(move.target.endpoint, []).append(move)
    return copies, tuple(
        Pairwise(GroupKey.of((source, replica), TRANSFER), tuple(moves[replica]))
        for replica, source in source_of.items()
        if replica in moves
    )


def _position_gathers(
    split: Split, sources: Catalog, targets: Catalog, node_of: NodeOf
) -> tuple[Moves, tuple[Exchange, ...]]:
    """One AllGather per position of the smaller layout; what not every member of it needs travels in pairs."""
    position_of = {endpoint: rank for part in split.parts for rank, endpoint in enumerate(part.endpoints)}

    def same_position(source: Site, target: Site) -> bool:
        return position_of[source.endpoint] == position_of[target.endpoint]

    copies, wire = by_reach(minimal_moves(sources, targets, node_of, reach=same_position))
    at: list[list[Move]] = [[] for _ in range(split.parts[0].layout.size)]
    for move in wire:
        at[position_of[move.target.endpoint]].append(move)
    exchanges: list[Exchange] = []
    for position, moves in enumerate(at):
        exchanges += _gathered(moves, {part.endpoints[position]: part.unit for part in split.parts})
    return copies, tuple(exchanges)


def _gathered(wire: Iterable[Move], unit_at: Mapping[EndpointId, UnitId]) -> tuple[Exchange, ...]:
    """What every member of a position needs as one AllGather, the rest in pairs."""
    readers: dict[tuple[EndpointId, tuple[TensorRef, ...], Box], list[Move]] = {}
    for move in wire:
        refs = tuple(tensor.ref for tensor in move.tensors)
        readers.setdefault((move.source.endpoint, refs, move.box), []).append(move)
    contributed: dict[EndpointId, list[Part]] = {endpoint: [] for endpoint in unit_at}
    paired: list[Move] = []
    for (source, _, box), moves in readers.items():
        if len(moves) == len(unit_at) - 1:
            contributed[source].append(Part(moves[0].tensors, box, moves[0].source.unit))
        else:
            paired += moves
    group = GroupKey.of(unit_at, TRANSFER)
    parts = tuple(tuple(contributed[member]) for member in group.members)
    gather = (AllGather(group, parts, tuple(unit_at[member] for member in group.members)),) if any(parts) else ()
    return (*gather, *pairwise(tuple(paired)))
