"""Canonical tensors: what a model's state is, apart from how it is sharded.

Each tensor has its true global shape (a vocabulary is never padded), a place in the pipeline, and a rule for tensor
parallelism: an axis that is cut, as consecutive segments that are cut each on its own. So a fused gate/up or q/k/v
tensor is one tensor with two or three segments, and GQA heads are a segment whose grain is the head dimension. What tensor
parallelism leaves to a rank is cut further along the first axis: over the fsdp axis of the layout, and optimizer state over
the replicas (ZeRO-1). Padding is not state; an empty shard is legal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from typing import NamedTuple

from nereus.errors import LayoutError, TensorRuleError
from nereus.layout.box import Box
from nereus.layout.layout import UNSHARDED, Layout, OptimizerShard

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}
"""Bytes of one element, by dtype name. A dtype that is missing here cannot be moved, and is refused by name."""


class Kind(StrEnum):
    """What a tensor is in the logical state of an EMU."""

    PARAMETER = "parameter"
    MASTER = "master"
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"
    SCALAR = "scalar"


OPTIMIZER_KINDS = frozenset((Kind.MASTER, Kind.EXP_AVG, Kind.EXP_AVG_SQ))
"""What ZeRO-1 shards over the replicas."""


class Place(StrEnum):
    """On which pipeline ranks of an EMU a tensor lives."""

    LAYER = "layer"
    """On the rank that computes its layer."""
    FIRST = "first"
    """On the first rank: token embeddings."""
    LAST = "last"
    """On the last rank: final norm and head."""
    ENDS = "ends"
    """On the first and the last rank: tied embeddings, one logical tensor with one moment set."""
    EVERYWHERE = "everywhere"
    """On every rank: counters, versions and position."""


class TensorRef(NamedTuple):
    """The name of one tensor of a model-stage's logical state."""

    name: str
    kind: Kind

    def __str__(self) -> str:
        return self.name if self.kind is Kind.PARAMETER else f"{self.name}:{self.kind}"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of `length` elements along the cut axis, cut in multiples of `grain` elements (1, or a head's dimension)."""

    length: int
    grain: int = 1

    def __post_init__(self) -> None:
        if self.grain < 1 or self.length % self.grain:
            raise TensorRuleError(f"a segment of {self.length} elements cannot be cut in grains of {self.grain}")

    def span(self, parts: int, index: int) -> tuple[int, int]:
        """The elements of part `index` of `parts`, relative to the segment.

        With at least as many grains as parts the grains are shared out as evenly as possible; with fewer (kv heads
        under a larger tp) neighbouring parts hold the same grain. The boundaries for a divisor of `parts` are a subset
        of those for `parts`, so that layouts nest.
        """
        grains = self.length // self.grain
        if grains >= parts:
            low, high = index * grains // parts, (index + 1) * grains // parts
        else:
            low = index * grains // parts
            high = low + 1 if grains else low
        return low * self.grain, high * self.grain


@dataclass(frozen=True, slots=True)
class CanonicalTensor:
    """One tensor of a model-stage's logical state, with its true global shape and its sharding rule."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    place: Place
    layer: int | None = None
    axis: int | None = None
    """The axis that tensor parallelism cuts; None for a tensor that every TP rank holds whole."""
    segments: tuple[Segment, ...] = ()
    frozen: bool = False
    """Never trained: every unit of every model-stage that has it holds the same values, so a weight sync leaves it out."""
    ref: TensorRef = field(init=False, repr=False, compare=False)
    """Its name and kind; kept, since everything is looked up by it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", TensorRef(self.name, self.kind))
        if self.dtype not in ITEM_BYTES:
            raise TensorRuleError(f"tensor {self.name}: dtype {self.dtype} has no rule; known are {sorted(ITEM_BYTES)}")
        if (self.place is Place.LAYER) != (self.layer is not None):
            raise TensorRuleError(f"tensor {self.name}: place {self.place} and layer {self.layer} contradict each other")
        if self.axis is None and self.segments:
            raise TensorRuleError(f"tensor {self.name}: segments without an axis to cut")
        if self.axis is not None and not 0 <= self.axis < len(self.shape):
            raise TensorRuleError(f"tensor {self.name}: axis {self.axis} is not in shape {self.shape}")
        if self.axis is not None and sum(s.length for s in self.segments) != self.shape[self.axis]:
            raise TensorRuleError(f"tensor {self.name}: segments do not add up to axis {self.axis} of shape {self.shape}")

    def __hash__(self) -> int:
        # Names are unique in a model-stage; hashing all fields would cost more than most of what is looked up by it.
        return hash(self.ref)

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    def as_kind(self, kind: Kind, dtype: str) -> CanonicalTensor:
        """The same geometry as another kind of state: an Adam moment, a master copy."""
        return replace(self, kind=kind, dtype=dtype)

    def boxes(self, layout: Layout, rank: int, num_layers: int, optimizer: OptimizerShard = UNSHARDED) -> tuple[Box, ...]:
        """The boxes that `rank` of an EMU of this layout holds, one per segment, empty ones left out.

        `optimizer` says which part of the optimizer state the EMU keeps. Raises LayoutError for an ep axis.
        """
        if layout.ep > 1:
            raise LayoutError(f"layout {layout}: the ep axis is declared but not carried out yet; use 1")
        at = layout.coordinate(rank)
        if not self._on_pipeline_rank(layout.pp, at.pp, num_layers):
            return ()
        boxes = self._tensor_parallel(layout.tp, at.tp)
        if self.shape and self.place is not Place.EVERYWHERE:
            boxes = _rows(boxes, at.fsdp, layout.fsdp)
            if self.kind in OPTIMIZER_KINDS:
                boxes = _rows(boxes, *optimizer)
        return tuple(box for box in boxes if box.volume)

    def _tensor_parallel(self, tp: int, index: int) -> list[Box]:
        """What a TP rank has of each segment."""
        whole = Box.whole(self.shape)
        if self.axis is None:
            return [whole]
        boxes, start = [], 0
        for segment in self.segments:
            low, high = segment.span(tp, index)
            boxes.append(whole.along(self.axis, start + low, start + high))
            start += segment.length
        return boxes

    def counted_boxes(
        self, layout: Layout, rank: int, num_layers: int, optimizer: OptimizerShard = UNSHARDED
    ) -> tuple[Box, ...]:
        """The boxes of `rank` that no lower rank of the EMU holds: over all ranks, each element exactly once."""
        lower = {box for other in range(rank) for box in self.boxes(layout, other, num_layers, optimizer)}
        return tuple(box for box in self.boxes(layout, rank, num_layers, optimizer) if box not in lower)

    def is_shared(self, tp: int) -> bool:
        """Whether TP neighbours hold the same elements of the cut axis, as with fewer kv heads than TP ranks."""
        return self.axis is not None and any(0 < s.length // s.grain < tp for s in self.segments)

    def _on_pipeline_rank(self, pp: int, pp_rank: int, num_layers: int) -> bool:
        if self.place is Place.EVERYWHERE:
            return True
        if self.place is Place.LAYER:
            assert self.layer is not None
            return self.layer in pipeline_layers(num_layers, pp, pp_rank)
        first, last = pp_rank == 0, pp_rank == pp - 1
        return {Place.FIRST: first, Place.LAST: last, Place.ENDS: first or last}[self.place]


def _rows(boxes: list[Box], index: int, count: int) -> list[Box]:
    """Part `index` of `count` of each box, along the first axis: as even as possible, and nested for divisors of `count`."""
    if count == 1:
        return boxes
    cut = []
    for box in boxes:
        low, rows = box.low[0], box.high[0] - box.low[0]
        cut.append(box.along(0, low + index * rows // count, low + (index + 1) * rows // count))
    return cut


def pipeline_layers(num_layers: int, pp: int, pp_rank: int) -> range:
    """The layers of one pipeline rank: as even as possible, and nested for divisors of pp."""
    if pp > num_layers:
        raise LayoutError(f"pp: {pp} pipeline ranks for {num_layers} layers; pp must be at most the number of layers")
    return range(pp_rank * num_layers // pp, (pp_rank + 1) * num_layers // pp)
