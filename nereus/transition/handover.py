"""Shards that change hands: what a unit that ends has exactly as a new unit on the same endpoint wants it is not copied.

    local copies -> handovers (all of a shard, from a unit that ends) + copies (the rest)

The new unit's shard is then the old one's memory under another name, until the old unit is released; nobody writes to it
meanwhile. A Merge of pipeline stages, or a change of replicas, so copies nothing that is resident (paper, section 6.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set

from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, Site, UnitId
from nereus.layout.moves import Move
from nereus.layout.tensors import TensorRef

Moves = tuple[Move, ...]


def handed_over(copies: Moves, sources: Catalog, targets: Catalog, ending: Set[UnitId]) -> tuple[Moves, Moves]:
    """Part local copies into those of whole shards from units of `ending`, and the rest.

    A shard changes hands where both units hold the same boxes of it in the same order, all copied from that one unit.
    """
    have, want = _Shards(sources), _Shards(targets)
    shards: dict[tuple[TensorRef, Site, Site], list[int]] = defaultdict(list)
    for index, move in enumerate(copies):
        if move.source.unit in ending:
            shards[move.tensors[0].ref, move.source, move.target].append(index)
    handed: set[int] = set()
    for (ref, source, target), places in shards.items():
        boxes = [copies[index].box for index in places]
        if boxes == have.boxes(ref, source) == want.boxes(ref, target):
            handed.update(places)
    apart: tuple[list[Move], list[Move]] = ([], [])
    for index, move in enumerate(copies):
        apart[index not in handed].append(move)
    return tuple(apart[0]), tuple(apart[1])


class _Shards:
    """The boxes of each shard of a catalog, in the order in which they lie side by side."""

    def __init__(self, catalog: Catalog) -> None:
        self._families = catalog.families
        self._family_of = {t.ref: index for index, family in enumerate(catalog.families) for t in family.tensors}
        self._by_site: dict[int, dict[Site, list[Box]]] = {}

    def boxes(self, ref: TensorRef, site: Site) -> list[Box]:
        """What a site holds of a tensor."""
        index = self._family_of[ref]
        if index not in self._by_site:
            by_site: dict[Site, list[Box]] = defaultdict(list)
            for held, box in self._families[index].holders:
                by_site[held].append(box)
            self._by_site[index] = by_site
        return self._by_site[index].get(site, [])
