"""Where shards are: sites (an endpoint's part of one unit) and the boxes that they hold.

    Catalog:  families of tensors -> [(site, box), ...]        site = (endpoint, unit)

Tensors that are cut alike (the layers of one pipeline rank, a parameter and its moments) form a family: their holders are
listed once, so that planning costs as much as a model has kinds of tensors, not as it has layers. Catalogs name endpoints,
not devices: in a framework an old and a new worker can share a device for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple, Protocol

from nereus.errors import TensorRuleError
from nereus.layout.box import Box
from nereus.layout.layout import UNSHARDED, Layout, OptimizerShard
from nereus.layout.tensors import OPTIMIZER_KINDS, CanonicalTensor, Kind, TensorRef

EndpointId = str
"""A process that holds shards. Natively `d<device>.<incarnation>`: a restarted worker is another endpoint."""


def by_number(endpoint: EndpointId) -> tuple[int, EndpointId]:
    """Sorts d2.0 before d10.0, so that units which are alike list their endpoints in the same order."""
    return len(endpoint), endpoint


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


class Held(Protocol):
    """A unit as a catalog sees it: how it is cut, and who holds its ranks."""

    @property
    def unit(self) -> UnitId: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def endpoints(self) -> tuple[EndpointId, ...]: ...

    @property
    def optimizer(self) -> OptimizerShard: ...


Tensors = tuple[CanonicalTensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StateSpec:
    """The logical state of a model-stage: its canonical tensors, and the depth that pipeline parallelism cuts.

    Compared and hashed by identity: it is made once per job, and sizes are looked up by it thousands of times in a search.
    """

    tensors: Tensors
    num_layers: int

    def __post_init__(self) -> None:
        seen: set[TensorRef] = set()
        for tensor in self.tensors:
            if tensor.layer is not None and not 0 <= tensor.layer < self.num_layers:
                raise TensorRuleError(f"tensor {tensor.ref}: layer {tensor.layer} is not one of {self.num_layers} layers")
            if tensor.ref in seen:
                raise TensorRuleError(f"tensor {tensor.ref} is declared twice")
            seen.add(tensor.ref)

    @property
    def num_parameters(self) -> int:
        """Elements of the parameters; the optimizer's tensors and the counters are not among them."""
        return sum(prod(tensor.shape) for tensor in self.tensors if tensor.kind is Kind.PARAMETER)

    def tensor(self, ref: TensorRef) -> CanonicalTensor:
        for tensor in self.tensors:
            if tensor.ref == ref:
                return tensor
        raise KeyError(str(ref))

    def shards(
        self, layout: Layout, rank: int, optimizer: OptimizerShard = UNSHARDED
    ) -> dict[CanonicalTensor, tuple[Box, ...]]:
        """What `rank` of an EMU holds; tensors of which it holds nothing are left out."""
        held: dict[CanonicalTensor, tuple[Box, ...]] = {}
        for family in _families(self, layout.pp):
            held.update(dict.fromkeys(family, family[0].boxes(layout, rank, self.num_layers, optimizer)))
        return {tensor: held[tensor] for tensor in self.tensors if held[tensor]}

    def shard_bytes(self, layout: Layout, rank: int, kind: Kind | None = None, optimizer: OptimizerShard = UNSHARDED) -> int:
        """Bytes of logical state that `rank` of an EMU holds; of one kind only, if it is given."""
        return _shard_bytes(self, layout, rank, kind, optimizer)

    def tensor_bytes(self, ref: TensorRef, layout: Layout, rank: int, optimizer: OptimizerShard = UNSHARDED) -> int:
        """Bytes of one tensor that `rank` of an EMU holds."""
        return _tensor_bytes(self, layout, optimizer)[rank].get(ref, 0)


@lru_cache(maxsize=1024)
def _tensor_bytes(state: StateSpec, layout: Layout, optimizer: OptimizerShard) -> tuple[dict[TensorRef, int], ...]:
    """Bytes of each tensor that a rank holds something of, rank by rank."""
    by_rank: tuple[dict[TensorRef, int], ...] = tuple({} for _ in range(layout.size))
    for family, held in _cut(state, layout, optimizer):
        sizes: Counter[int] = Counter()
        for rank, box in held:
            sizes[rank] += box.volume * family[0].item_bytes
        refs = [tensor.ref for tensor in family]
        for rank, size in sizes.items():
            by_rank[rank].update(dict.fromkeys(refs, size))
    return by_rank


@lru_cache(maxsize=8192)
def _shard_bytes(state: StateSpec, layout: Layout, rank: int, kind: Kind | None, optimizer: OptimizerShard) -> int:
    sizes = _tensor_bytes(state, layout, optimizer)[rank]
    return sum(size for ref, size in sizes.items() if kind is None or ref.kind is kind)


@lru_cache(maxsize=1024)
def _cut(
    state: StateSpec, layout: Layout, optimizer: OptimizerShard
) -> tuple[tuple[Tensors, tuple[tuple[int, Box], ...]], ...]:
    """The families of a state under a layout, each with the ranks that hold something of it, and the boxes."""
    return tuple(
        (
            family,
            tuple(
                (rank, box)
                for rank in range(layout.size)
                for box in family[0].boxes(layout, rank, state.num_layers, optimizer)
            ),
        )
        for family in _families(state, layout.pp)
    )


@lru_cache(maxsize=1024)
def _families(state: StateSpec, pp: int) -> tuple[Tensors, ...]:
    """The tensors that are cut alike under any layout with `pp` pipeline ranks."""
    families: dict[object, list[CanonicalTensor]] = {}
    for tensor in state.tensors:
        # Layers are told apart by their pipeline rank alone: the first of a run stands for all.
        where = None if tensor.layer is None else _pipeline_rank(tensor.layer, pp, state.num_layers)
        sharded = tensor.kind in OPTIMIZER_KINDS
        key = (tensor.place, where, tensor.shape, tensor.axis, tensor.segments, tensor.dtype, sharded, tensor.frozen)
        families.setdefault(key, []).append(tensor)
    return tuple(tuple(family) for family in families.values())


@lru_cache(maxsize=1024)
def _common_families(state: StateSpec, depths: tuple[int, ...]) -> tuple[Tensors, ...]:
    """The tensors that are cut alike under layouts of all these numbers of pipeline ranks."""
    if len(depths) == 1:
        return _families(state, depths[0])
    families: dict[tuple[int, ...], list[CanonicalTensor]] = {}
    known = [{t: i for i, family in enumerate(_families(state, pp)) for t in family} for pp in depths]
    for tensor in state.tensors:
        families.setdefault(tuple(index[tensor] for index in known), []).append(tensor)
    return tuple(tuple(family) for family in families.values())


@lru_cache(maxsize=1024)
def _parts_of_families(state: StateSpec, depths: tuple[int, ...], pp: int) -> tuple[tuple[int, ...], ...]:
    """The common families that make up each family of layouts with `pp` pipeline ranks, by index."""
    of = {tensor: index for index, family in enumerate(_families(state, pp)) for tensor in family}
    parts: list[list[int]] = [[] for _ in _families(state, pp)]
    for index, family in enumerate(_common_families(state, depths)):
        parts[of[family[0]]].append(index)
    return tuple(tuple(part) for part in parts)


def _pipeline_rank(layer: int, pp: int, num_layers: int) -> int:
    """The pipeline rank that computes a layer: the inverse of `pipeline_layers`."""
    return ((layer + 1) * pp - 1) // num_layers


class Family(NamedTuple):
    """Tensors of one shape and dtype with the same holders of the same boxes."""

    tensors: Tensors
    holders: tuple[tuple[Site, Box], ...]

    @property
    def item_bytes(self) -> int:
        """Bytes of one element of all the family's tensors together."""
        return self.tensors[0].item_bytes * len(self.tensors)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Which site holds which boxes of which tensors, in a fixed order."""

    families: tuple[Family, ...]

    @classmethod
    def of(cls, state: StateSpec, units: Iterable[Held]) -> Catalog:
        """The catalog of complete units."""
        units = tuple(units)
        depths = tuple(sorted({held.layout.pp for held in units})) or (1,)
        holders: list[list[tuple[Site, Box]]] = [[] for _ in _common_families(state, depths)]
        for held in units:
            sites = tuple(Site(endpoint, held.unit) for endpoint in held.endpoints)
            parts = _parts_of_families(state, depths, held.layout.pp)
            for part, (_, cut) in zip(parts, _cut(state, held.layout, held.optimizer), strict=True):
                found = [(sites[rank], box) for rank, box in cut]
                for index in part:
                    holders[index].extend(found)
        common = _common_families(state, depths)
        return cls(tuple(Family(tensors, tuple(held)) for tensors, held in zip(common, holders, strict=True)))

    @classmethod
    def landed(cls, held: Mapping[Site, Mapping[CanonicalTensor, Sequence[Box]]]) -> Catalog:
        """The catalog of what stores report: units that may be in part, each tensor a family of its own."""
        holders: dict[CanonicalTensor, list[tuple[Site, Box]]] = {}
        for site, shards in held.items():
            for tensor, boxes in shards.items():
                holders.setdefault(tensor, []).extend((site, box) for box in boxes)
        return cls(tuple(Family((tensor,), tuple(found)) for tensor, found in holders.items()))

    def where(self, wanted: Callable[[Site], bool]) -> Catalog:
        """The part of the catalog that these sites hold."""
        return Catalog(tuple(Family(tensors, tuple(h for h in held if wanted(h[0]))) for tensors, held in self.families))

    def trained(self) -> Catalog:
        """The catalog without frozen tensors."""
        return Catalog(tuple(family for family in self.families if not family.tensors[0].frozen))

    def holdings(self) -> Iterator[tuple[CanonicalTensor, Site, Box]]:
        """Every box of every tensor."""
        return ((tensor, site, box) for tensors, held in self.families for tensor in tensors for site, box in held)
