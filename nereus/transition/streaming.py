"""Streams: an operation in buckets, for a copy that does not fit beside what it is made from.

    Op -> Op with buckets: open a bucket's target tensors -> move them -> all members have them -> release what was read

What a bucket frees makes room for the next, so tensors are taken in an order in which no endpoint grows much before it
shrinks. A stream that was interrupted goes on from the first bucket that is not everywhere, or is undone by the same moves
the other way.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nereus.emu.unit import Emu
from nereus.layout.catalog import Catalog, EndpointId, Family, Site, StateSpec, Tensors
from nereus.layout.moves import Move, NodeOf, minimal_moves
from nereus.layout.tensors import TensorRef
from nereus.transition.collectives import TRANSFER, GroupKey
from nereus.transition.handover import handed_over
from nereus.transition.lowering import by_reach, pairwise
from nereus.transition.messages import message_bytes
from nereus.transition.ops import Op, Stream, Transition


def streamed(
    transition: Transition, stages: Set[str], current: Iterable[Emu], states: Mapping[str, StateSpec]
) -> Transition:
    """The same transition with every operation that moves state of these model-stages as a stream."""
    standing = tuple(current)
    while True:
        moving = (op for op in transition.moving if op.makes and op.stream is None and op.stage in stages)
        op = next(moving, None)
        if op is None:
            return transition
        of_stage = tuple(emu for emu in standing if emu.stage == op.stage)
        transition = _streamed(_joined(transition, op.id, of_stage), op.id, of_stage, states[op.stage])


def _streamed(transition: Transition, op_id: str, current: tuple[Emu, ...], state: StateSpec) -> Transition:
    """The same transition with one operation as a stream, which frees what no other operation reads any more.

    What a Destroy after it would release of that is freed by the stream; a Destroy with nothing left becomes part of it.
    """
    op = next(op for op in transition.ops if op.id == op_id)
    frees = _ending_sites(transition, op, current)
    stream = Stream(GroupKey.of(op.members, TRANSFER), _buckets(op, frees, current, state))
    ops, gone, primitives = list[Op](), set[str](), list[str]()
    for other in transition.ops:
        left = tuple(site for site in other.frees if site not in frees)
        if other.is_release and not left and other.id != op_id:
            gone.add(other.id)
            primitives += other.primitives
        elif other.id != op_id:
            ops.append(replace(other, frees=left))
        else:
            ops.append(other)
    changed = replace(op, primitives=(*op.primitives, *primitives), frees=frees, stream=stream)
    return replace(transition, ops=_renamed([changed if known.id == op_id else known for known in ops], gone, op_id))


def _joined(transition: Transition, op_id: str, current: tuple[Emu, ...]) -> Transition:
    """The same transition with one operation joined by those that read ending units along with it.

    Apart, the first of them could free nothing of what the second still reads.
    """
    ops = {op.id: op for op in transition.ops}
    ending = {emu.unit for emu in current} - {emu.unit for emu in transition.result}
    joined = {op_id}
    for other in transition.ops:
        if other.id in joined or not other.makes or other.stream is not None or other.stage != ops[op_id].stage:
            continue
        read = {site for name in joined for site in _read_sites(ops[name]) if site.unit in ending}
        if not read.isdisjoint(_read_sites(other)) and _can_join(transition, {*joined, other.id}):
            joined.add(other.id)
    if joined == {op_id}:
        return transition
    parts = [op for op in transition.ops if op.id in joined]
    exchanges = tuple(exchange for op in parts for exchange in op.exchanges)
    whole = replace(
        ops[op_id],
        primitives=tuple(primitive for op in parts for primitive in op.primitives),
        makes=tuple(emu for op in parts for emu in op.makes),
        frees=tuple(site for op in parts for site in op.frees),
        handovers=tuple(move for op in parts for move in op.handovers),
        copies=tuple(move for op in parts for move in op.copies),
        exchanges=exchanges,
        after=tuple({name for op in parts for name in op.after if name not in joined}),
        message_bytes=message_bytes(exchanges, ops[op_id].bucket_bytes),
    )
    left = [whole if op.id == op_id else op for op in transition.ops if op.id == op_id or op.id not in joined]
    return replace(transition, ops=_renamed(left, joined, op_id))


def _can_join(transition: Transition, names: set[str]) -> bool:
    """Whether operations can run at once: none reads what another makes, and none has to wait for one in between."""
    joined = [op for op in transition.ops if op.id in names]
    made = {emu.unit for op in joined for emu in op.makes}
    if any(site.unit in made for op in joined for site in _read_sites(op)):
        return False
    before = set[str]().union(*(_ancestors(transition, op) for op in joined)) - names
    return all(names.isdisjoint(_ancestors(transition, op)) for op in transition.ops if op.id in before)


def _renamed(ops: list[Op], gone: set[str], name: str) -> tuple[Op, ...]:
    """The operations with `name` in place of those that are gone, each after those that it waits for."""
    waiting = [replace(op, after=tuple(sorted({name if n in gone else n for n in op.after} - {op.id}))) for op in ops]
    order, done = list[Op](), set[str]()
    while waiting:
        op = next(op for op in waiting if done.issuperset(op.after))
        waiting.remove(op)
        done.add(op.id)
        order.append(op)
    return tuple(order)


def undone(op: Op, num_buckets: int, ended: Iterable[Emu], state: StateSpec, node_of: NodeOf) -> Op:
    """The stream that takes the first `num_buckets` of `op` back to the units that it has freed."""
    assert op.stream is not None
    refs = frozenset(ref for bucket in op.stream.buckets[:num_buckets] for ref in bucket)
    freed, ended = set(op.frees), tuple(ended)
    sources = _only(Catalog.of(state, op.makes), refs)
    targets = _only(Catalog.of(state, ended).where(freed.__contains__), refs)
    local, wire = by_reach(minimal_moves(sources, targets, node_of))
    handovers, copies = handed_over(local, sources, targets, {emu.unit for emu in op.makes})
    exchanges = pairwise(wire)
    back = replace(
        op,
        id=f"{op.id}.undone",
        makes=ended,
        frees=tuple(Site(endpoint, emu.unit) for emu in op.makes for endpoint in emu.endpoints),
        standing=tuple(s for s in (Site(e, emu.unit) for emu in ended for e in emu.endpoints) if s not in freed),
        handovers=handovers,
        copies=copies,
        exchanges=exchanges,
        after=(),
        message_bytes=message_bytes(exchanges, op.bucket_bytes),
        stream=None,
    )
    return replace(back, stream=Stream(GroupKey.of(back.members, TRANSFER), op.stream.buckets[:num_buckets][::-1]))


def _only(catalog: Catalog, refs: frozenset[TensorRef]) -> Catalog:
    kept = (Family(tuple(t for t in tensors if t.ref in refs), holders) for tensors, holders in catalog.families)
    return Catalog(tuple(family for family in kept if family.tensors and family.holders))


def _ending_sites(transition: Transition, op: Op, current: tuple[Emu, ...]) -> tuple[Site, ...]:
    """The sites that this operation reads last: of units that end, read by no later one, and released by none."""
    staying = {emu.unit for emu in transition.result}
    before = _ancestors(transition, op)
    others = [other for other in transition.ops if other.id != op.id and other.id not in before]
    later = {other.id for other in others if op.id in _ancestors(transition, other)}
    freed = {site for other in transition.ops if other.id not in later and other.id != op.id for site in other.frees}
    taken = freed.union(*(_read_sites(other) for other in others))
    read_units = {site.unit for site in _read_sites(op)}
    return tuple(
        site
        for emu in current
        if emu.unit not in staying and emu.unit in read_units
        for site in (Site(endpoint, emu.unit) for endpoint in emu.endpoints)
        if site not in taken and site.endpoint in op.members
    )


def _ancestors(transition: Transition, op: Op) -> set[str]:
    """The operations that this one waits for, directly or not."""
    after = {other.id: other.after for other in transition.ops}
    waiting, seen = list(op.after), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(after[name])
    return seen


def _read_sites(op: Op) -> set[Site]:
    sites = {move.source for move in op.local}
    for exchange in op.exchanges:
        sites |= exchange.sources
    return sites


def _buckets(op: Op, frees: tuple[Site, ...], current: Iterable[Emu], state: StateSpec) -> tuple[tuple[TensorRef, ...], ...]:
    """The tensors in buckets, each opening at most half of `bucket_bytes` on an endpoint, or a single tensor.

    Half, since what is received of it may be in a buffer as well. Next comes the tensor that takes no endpoint further above
    what it holds before and after than it must.
    """
    place = {endpoint: index for index, endpoint in enumerate(op.members)}
    freed, ending = set(frees), {site.unit for site in frees}
    closed = Catalog.of(state, [emu for emu in current if emu.unit in ending]).where(freed.__contains__)
    # What changes hands is opened by nobody, and released by nobody.
    grows = _bytes_by_tensor(Catalog.of(state, op.makes), op.handovers, place)
    shrinks = _bytes_by_tensor(closed, [move for move in op.handovers if move.source in freed], place)
    alike: dict[tuple[bytes, bytes], list[TensorRef]] = {}
    for tensor in state.tensors:
        alike.setdefault((grows[tensor.ref].tobytes(), shrinks[tensor.ref].tobytes()), []).append(tensor.ref)
    grow = np.array([grows[refs[0]] for refs in alike.values()])
    change = grow - np.array([shrinks[refs[0]] for refs in alike.values()])
    queues = [deque(refs) for refs in alike.values()]
    used = -np.maximum(0, sum(change[i] * len(queue) for i, queue in enumerate(queues)))
    buckets: list[tuple[TensorRef, ...]] = []
    bucket: list[TensorRef] = []
    opened = np.zeros(len(place), dtype=np.int64)
    for _ in state.tensors:
        peaks = np.where([bool(queue) for queue in queues], (used + grow).max(axis=1), np.iinfo(np.int64).max)
        chosen = int(np.lexsort(((used + change).max(axis=1), peaks))[0])
        if bucket and int((opened + grow[chosen]).max()) > op.bucket_bytes // 2:
            buckets.append(tuple(bucket))
            bucket, opened = [], np.zeros_like(opened)
        bucket.append(queues[chosen].popleft())
        opened, used = opened + grow[chosen], used + change[chosen]
    return (*buckets, tuple(bucket))


def _bytes_by_tensor(
    catalog: Catalog, handovers: Iterable[Move], members: Mapping[EndpointId, int]
) -> defaultdict[TensorRef, NDArray[np.int64]]:
    """Bytes of each tensor on each member, without what changes hands."""
    none = np.zeros(len(members), dtype=np.int64)
    found: defaultdict[TensorRef, NDArray[np.int64]] = defaultdict(lambda: none)
    for tensors, holders in catalog.families:
        held = np.zeros_like(none)
        for site, box in holders:
            held[members[site.endpoint]] += box.volume * tensors[0].item_bytes
        found.update({tensor.ref: held for tensor in tensors})
    handed: dict[int, tuple[Tensors, NDArray[np.int64]]] = {}
    for move in handovers:
        _, size = handed.setdefault(id(move.tensors), (move.tensors, np.zeros_like(none)))
        size[members[move.target.endpoint]] += move.box.volume * move.tensors[0].item_bytes
    for tensors, size in handed.values():
        found.update({tensor.ref: found[tensor.ref] - size for tensor in tensors})
    return found
