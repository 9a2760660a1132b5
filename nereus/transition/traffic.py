"""Who sends how much to whom in a transition, and how much of it has to be sent.

Read off the compiled operations, whatever they were compiled from; the lower bound is read off the units alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, StateSpec
from nereus.transition.ops import AllGather, GroupKey, Op, Transition


def moved_bytes(transition: Transition) -> Counter[tuple[EndpointId, EndpointId]]:
    """Bytes from one endpoint to another, and within one: local copies."""
    moved: Counter[tuple[EndpointId, EndpointId]] = Counter()
    for op in transition.ops:
        for source, target, num_bytes in _transfers(op):
            moved[source, target] += num_bytes
    return moved


def _transfers(op: Op) -> Iterator[tuple[EndpointId, EndpointId, int]]:
    """From where to where an operation moves how much."""
    for move in op.copies:
        yield move.source.endpoint, move.target.endpoint, move.num_bytes
    for exchange in op.exchanges:
        if isinstance(exchange, AllGather):
            for source, parts in zip(exchange.group.members, exchange.parts, strict=True):
                size = sum(part.num_bytes for part in parts)
                yield from ((source, target, size) for target in exchange.group.members if size and target != source)
        else:
            for move in exchange.moves:
                yield move.source.endpoint, move.target.endpoint, move.num_bytes


def new_groups(transition: Transition) -> dict[EndpointId, tuple[GroupKey, ...]]:
    """The communicators that each endpoint makes for the transition, taken as new."""
    groups: defaultdict[EndpointId, set[GroupKey]] = defaultdict(set)
    for op in transition.ops:
        for key in op.groups:
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
