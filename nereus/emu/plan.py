"""Plans: which layout, DP degree and devices each model-stage has.

Plan S = {StagePlan pi_M}      StagePlan = <tp, pp, dp, R_M>      Phi(pi_M) = its EMUs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nereus.errors import LayoutError
from nereus.layout.layout import UNSHARDED, Layout, OptimizerShard

DeviceId = int
"""The position of a device in the job's pool, in node order."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The paper's pi_M: how one model-stage is laid out."""

    stage: str
    layout: Layout
    dp: int
    devices: tuple[DeviceId, ...]
    """dp groups of layout.size devices, each in rank order."""
    micro_batch: int = 1
    """Sequences of one EMU that go through the model together."""
    zero1: bool = False
    """Whether the optimizer state is sharded over the replicas instead of repeated in each (ZeRO-1)."""
    recompute: bool = False
    """Whether the backward computes whole layers again instead of keeping their activations."""

    def __post_init__(self) -> None:
        if self.dp < 1 or self.micro_batch < 1:
            raise LayoutError(f"{self.stage}: dp {self.dp} and micro_batch {self.micro_batch} must be 1 or more")
        if len(self.devices) != self.dp * self.layout.size:
            raise LayoutError(
                f"{self.stage}: {len(self.devices)} devices for dp {self.dp} of {self.layout}, "
                f"which takes {self.dp * self.layout.size}"
            )
        if len(set(self.devices)) != len(self.devices):
            raise LayoutError(f"{self.stage}: a device is named twice in {list(self.devices)}")

    @property
    def groups(self) -> tuple[tuple[DeviceId, ...], ...]:
        """The devices of each EMU, in rank order."""
        size = self.layout.size
        return tuple(self.devices[i * size : (i + 1) * size] for i in range(self.dp))

    def optimizer(self, index: int) -> OptimizerShard:
        """Which part of the optimizer state replica `index` keeps."""
        return OptimizerShard(index, self.dp) if self.zero1 else UNSHARDED

    @property
    def batching(self) -> str:
        """How sequences go through the model, in short: `mb4`, or `mb4 recompute`."""
        return f"mb{self.micro_batch}{' recompute' if self.recompute else ''}"

    def __str__(self) -> str:
        return f"{self.layout} dp{self.dp}{' zero1' if self.zero1 else ''} on {spans(self.devices)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The paper's S: one StagePlan per model-stage, and the epoch that it was committed in."""

    epoch: int
    stages: Mapping[str, StagePlan]

    @property
    def devices(self) -> frozenset[DeviceId]:
        return frozenset(device for stage in self.stages.values() for device in stage.devices)


def spans(devices: tuple[DeviceId, ...]) -> str:
    """Device numbers in short: (0, 1, 2, 5) -> '0-2,5'."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
