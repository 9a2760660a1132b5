"""What a search is asked: the job's shapes, the devices that it may use, and the batch to plan for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nereus.cost.batch import Batch
from nereus.cost.step import CostModel
from nereus.emu.plan import DeviceId, StagePlan
from nereus.layout.catalog import StateSpec


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

    @property
    def usable_bytes(self) -> float:
        """Memory of one device that a plan may fill."""
        return self.capacity_bytes * (1 - self.headroom)

    @property
    def smallest_node(self) -> int:
        """Devices of the pool on its smallest node: the largest TP group that fits inside any node."""
        counts: dict[int, int] = {}
        for device in self.devices:
            counts[self.node_of[device]] = counts.get(self.node_of[device], 0) + 1
        return min(counts.values(), default=0)
