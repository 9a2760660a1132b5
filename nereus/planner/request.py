"""What a search is asked: the job's shapes, the devices that it may use, and the batch to plan for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.cost.batch import Batch
from nereus.cost.step import CostModel
from nereus.emu.plan import DeviceId, StagePlan
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import Layout


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One planning problem: Eq. (1) with its numbers."""

    states: Mapping[str, StateSpec]
    """The logical state of each model-stage, which are also the model-stages to plan."""
    generates: str
    """The model-stage that receives the weight sync; it has no pipeline."""
    cost: CostModel
    devices: tuple[DeviceId, ...]
    """The pool P_gpu, in node order."""
    node_of: Mapping[DeviceId, int]
    capacity_bytes: int
    """Memory of one device, before headroom."""
    headroom: float
    """Share of it that a plan leaves free (paper, section 4.1: 10 %)."""
    mean: Batch
    """What a step is expected to work on: decides latency."""
    longest: Batch
    """What it may have to work on: decides memory."""
    micro_batches: tuple[int, ...]
    """Sequences that go through a model together, to choose from."""
    pinned: Mapping[str, StagePlan] = field(default_factory=dict)
    """Model-stages that stay as they are."""
    shapes: Mapping[str, tuple[Layout, int]] = field(default_factory=dict)
    """Model-stages of which only this layout and DP degree are looked at, with any micro-batch."""

    overlaps: bool = False
    """Whether model-stages of one stage on disjoint devices run at the same time; the native job runs them in turn."""

    @property
    def usable_bytes(self) -> float:
        """Memory of one device that a plan may fill."""
        return self.capacity_bytes * (1 - self.headroom)

    def tp_groups(self, tp: int) -> int:
        """How many TP groups of this size fit inside nodes of the pool."""
        counts: dict[int, int] = {}
        for device in self.devices:
            counts[self.node_of[device]] = counts.get(self.node_of[device], 0) + 1
        return sum(count // tp for count in counts.values())
