"""Where shards are: sites (an endpoint's part of one unit) and the boxes that they hold.

    Catalog:  tensor -> [(site, box), ...]        site = (endpoint, unit)

Catalogs name endpoints, not devices: in a framework an old and a new worker can share a device for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from nereus.errors import TensorRuleError
from nereus.layout.box import Box
from nereus.layout.layout import Layout
from nereus.layout.tensors import CanonicalTensor, Kind, TensorRef

EndpointId = str
"""A process that holds shards. Natively `d<device>.<incarnation>`: a restarted worker is another endpoint."""


@dataclass(frozen=True, slots=True, order=True)
class UnitId:
    """The name of one EMU, for ever: it is never reused, so it also fences stale calls."""

    stage: str
    index: int
    birth_epoch: int

    def __str__(self) -> str:
        return f"{self.stage}/{self.index}@{self.birth_epoch}"


class Site(NamedTuple):
    """One endpoint's part of one unit."""

    endpoint: EndpointId
    unit: UnitId


@dataclass(frozen=True, slots=True, eq=False)
class StateSpec:
    """The logical state of a model-stage: its canonical tensors, and the depth that pipeline parallelism cuts.

    Compared and hashed by identity: it is made once per job, and sizes are looked up by it thousands of times in a search.
    """

    tensors: tuple[CanonicalTensor, ...]
    num_layers: int

    def __post_init__(self) -> None:
        seen: set[TensorRef] = set()
        for tensor in self.tensors:
            if tensor.layer is not None and not 0 <= tensor.layer < self.num_layers:
                raise TensorRuleError(f"tensor {tensor.ref}: layer {tensor.layer} is not one of {self.num_layers} layers")
            if tensor.ref in seen:
                raise TensorRuleError(f"tensor {tensor.ref} is declared twice")
            seen.add(tensor.ref)

    def tensor(self, ref: TensorRef) -> CanonicalTensor:
        for tensor in self.tensors:
            if tensor.ref == ref:
                return tensor
        raise KeyError(str(ref))

    def shards(self, layout: Layout, rank: int) -> dict[CanonicalTensor, tuple[Box, ...]]:
        """What `rank` of an EMU holds; tensors of which it holds nothing are left out."""
        held = ((tensor, tensor.boxes(layout, rank, self.num_layers)) for tensor in self.tensors)
        return {tensor: boxes for tensor, boxes in held if boxes}

    def shard_bytes(self, layout: Layout, rank: int, kind: Kind | None = None) -> int:
        """Bytes of logical state that `rank` of an EMU holds; of one kind only, if it is given."""
        return _shard_bytes(self, layout, rank, kind)


@lru_cache(maxsize=4096)
def _shard_bytes(state: StateSpec, layout: Layout, rank: int, kind: Kind | None) -> int:
    chosen = (tensor for tensor in state.tensors if kind is None or tensor.kind is kind)
    return sum(t.item_bytes * sum(box.volume for box in t.boxes(layout, rank, state.num_layers)) for t in chosen)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Which site holds which boxes of which tensor, in a fixed order."""

    holdings: Mapping[CanonicalTensor, tuple[tuple[Site, Box], ...]]

    @classmethod
    def of(cls, state: StateSpec, units: Iterable[tuple[UnitId, Layout, tuple[EndpointId, ...]]]) -> Catalog:
        """The catalog of complete units: (unit, layout, endpoints in rank order)."""
        holdings: dict[CanonicalTensor, list[tuple[Site, Box]]] = {tensor: [] for tensor in state.tensors}
        for unit, layout, endpoints in units:
            for rank, endpoint in enumerate(endpoints):
                for tensor, boxes in state.shards(layout, rank).items():
                    holdings[tensor].extend((Site(endpoint, unit), box) for box in boxes)
        return cls({tensor: tuple(held) for tensor, held in holdings.items()})

    def at(self, endpoints: Iterable[EndpointId]) -> Catalog:
        """The part of the catalog that these endpoints hold."""
        chosen = frozenset(endpoints)
        return Catalog({tensor: tuple(h for h in held if h[0].endpoint in chosen) for tensor, held in self.holdings.items()})
