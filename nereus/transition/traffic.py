"""Who sends how much to whom in a transition, and how much of it has to be sent.

Read off the compiled operations, whatever they were compiled from; the lower bound is read off the units alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, StateSpec, Tensors
from nereus.transition.collectives import AllGather, GroupKey
from nereus.transition.ops import Op, Transition


def moved_bytes(transition: Transition) -> Counter[tuple[EndpointId, EndpointId]]:
    """Bytes from one endpoint to another, and within one: local copies. What changes hands does not move."""
    moved: Counter[tuple[EndpointId, EndpointId]] = Counter()
    for op in transition.ops:
        moved.update(op_bytes(op))
    return moved


def op_bytes(op: Op) -> Counter[tuple[EndpointId, EndpointId]]:
    """The same of one operation."""
    moved: Counter[tuple[EndpointId, EndpointId]] = Counter()
    for source, target, tensors, volume in _transfers(op):
        moved[source, target] += volume * tensors[0].item_bytes * len(tensors)
    return moved


def _transfers(op: Op) -> Iterator[tuple[EndpointId, EndpointId, Tensors, int]]:
    """From where to where an operation moves how many elements of which tensors."""
    for move in op.copies:
        yield move.source.endpoint, move.target.endpoint, move.tensors, move.box.volume
    for exchange in op.exchanges:
        if isinstance(exchange, AllGather):
            for source, parts in zip(exchange.group.members, exchange.parts, strict=True):
                for part in parts:
                    volume = part.box.volume
                    yield from ((source, t, part.tensors, volume) for t in exchange.group.members if t != source)
        else:
            for move in exchange.moves:
                yield move.source.endpoint, move.target.endpoint, move.tensors, move.box.volume


def wire_bytes(op: Op) -> tuple[dict[EndpointId, tuple[int, int]], ...]:
    """Bytes that each endpoint sends to and receives from others: bucket by bucket of a stream, else all at once."""
    buckets = op.stream.buckets if op.stream else ((),)
    bucket_of = {ref: index for index, bucket in enumerate(buckets) for ref in bucket}
    sent = [Counter[EndpointId]() for _ in buckets]
    received = [Counter[EndpointId]() for _ in buckets]
    spread: dict[int, Mapping[int, int]] = {}
    """How many of the tensors of a move are in which bucket: most moves are of a few families, each the same object."""
    for source, target, tensors, volume in _transfers(op):
        if source == target:
            continue
        size = volume * tensors[0].item_bytes
        if id(tensors) not in spread:
            spread[id(tensors)] = Counter(bucket_of[t.ref] for t in tensors) if op.stream else {0: len(tensors)}
        for index, count in spread[id(tensors)].items():
            sent[index][source] += size * count
            received[index][target] += size * count
    return tuple(
        {endpoint: (out[endpoint], into[endpoint]) for endpoint in sorted({*out, *into})}
        for out, into in zip(sent, received, strict=True)
    )


def new_groups(transition: Transition, ready: Collection[GroupKey] = frozenset()) -> dict[EndpointId, tuple[GroupKey, ...]]:
    """The communicators that each endpoint makes for the transition: those that it uses and that are not ready."""
    groups: defaultdict[EndpointId, set[GroupKey]] = defaultdict(set)
    for op in transition.ops:
        for key in op.groups:
            if key in ready:
                continue
            for endpoint in key.members:
                groups[endpoint].add(key)
    return {endpoint: tuple(sorted(keys)) for endpoint, keys in groups.items()}


def missing_bytes(before: Iterable[Emu], after: Iterable[Emu], state: StateSpec) -> int:
    """Bytes of the units after that their endpoints do not hold in the units before: what has to be sent, at least."""
    sources, targets = Catalog.of(state, before), Catalog.of(state, after)
    family_of = {tensor.ref: index for index, family in enumerate(sources.families) for tensor in family.tensors}
    held: list[defaultdict[EndpointId, list[Box]]] = []
    for family in sources.families:
        held.append(defaultdict(list))
        for site, box in family.holders:
            held[-1][site.endpoint].append(box)
    missing = 0
    for tensors, wanted in targets.families:
        for index, count in Counter(family_of[tensor.ref] for tensor in tensors).items():
            for site, box in wanted:
                common = (box.intersect(have) for have in held[index].get(site.endpoint, ()))
                kept = sum(part.volume for part in common if part is not None)
                missing += (box.volume - kept) * tensors[0].item_bytes * count
    return missing
