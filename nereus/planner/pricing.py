"""What a decision asks of a job's cost model, whichever job it is: seconds, memory, and the plans that would be better.

    Pricing  <-  NativePricing (native.py: a job file, timed devices)
             <-  OutlinePricing (outline_pricing.py: any framework's job on accelerators)

Policy and control know plans by model-stage, layout, DP degree and devices; what a step of them computes is the pricing's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, exp, log
from typing import Protocol

from nereus.emu.plan import DeviceId, Plan, StagePlan

GRID = 0.01
"""Of the logs of lengths: a tenth of the headroom in the part of memory that grows with them."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The responses of a step, in tokens."""

    mean: float
    """Decides latency."""
    longest: float
    """Decides memory."""
    usual: float = 0.0
    """The longest that is expected: decides how long generation takes, which waits for it. 0: as `longest`."""

    @property
    def on_grid(self) -> Lengths:
        """Rounded up on a grid of 1 %: most steps find what was asked before, and a plan that was found stays one that
        fits."""
        found = (self.mean, self.longest, self.usual)
        return Lengths(*(exp(ceil(log(max(tokens, 1.0)) / GRID) * GRID) if tokens else 0.0 for tokens in found))


@dataclass(frozen=True, slots=True)
class Devices:
    """The pool P_gpu that a plan may use."""

    ids: tuple[DeviceId, ...]
    """In node order."""
    node_of: Mapping[DeviceId, int]

    @property
    def nodes(self) -> Mapping[int, tuple[DeviceId, ...]]:
        """The devices of each node, in order."""
        found: dict[int, list[DeviceId]] = {}
        for device in self.ids:
            found.setdefault(self.node_of[device], []).append(device)
        return {node: tuple(devices) for node, devices in found.items()}


@dataclass(frozen=True, slots=True)
class Target:
    """A plan that a search found, on positions of the pool."""

    stages: Mapping[str, StagePlan]
    seconds: float
    """L_step."""
    peak_bytes: int
    """Mem_peak: of the fullest device."""
    placed: bool
    """Whether the positions are part of the plan. If not, every device can host all model-stages, wherever they are put."""


class Pricing(Protocol):
    """Prices the plans of one job. A value: it is sent to the planner's process, and `learn` returns another one."""

    @property
    def usable_bytes(self) -> float:
        """Memory of a device that a plan may fill, headroom taken off; infinite where none is declared."""

    @property
    def apart(self) -> frozenset[frozenset[str]]:
        """Pairs of model-stages that run at the same time: no plan lets them share a device, and no transition either."""

    def timed(self, flops_s: float | None) -> Pricing:
        """The pricing of devices that were timed at so many FLOP/s, the slowest; None before any was."""

    def lengths(self, mean: float, steps: range) -> Lengths:
        """The responses that these RL steps may have, when the last ones had `mean` tokens on average."""

    def search(self, pool: Devices, lengths: Lengths, top: int, like: Plan | None = None) -> tuple[Target, ...]:
        """The `top` best plans of distinct shape, fastest first; none where nothing fits.

        With `like`, only plans with its layouts and DP degrees: they differ in micro-batch or recomputation.
        """

    def step_seconds(self, plan: Plan, lengths: Lengths) -> float:
        """L_step of a plan."""

    def holder_seconds(self, plan: Plan, lengths: Lengths) -> Mapping[str, float]:
        """Of the model-stages of each holder of devices by themselves, added up: what a step would take one by one."""

    def peaks(self, plan: Plan, lengths: Lengths) -> Mapping[DeviceId, int]:
        """Peak bytes of every device over a step of a plan."""

    def efficiencies(self) -> Mapping[str, float]:
        """Achieved over peak of what was measured, by class: names begin with `compute/` or `communication/`."""

    def assumed(self) -> Mapping[str, float]:
        """What the same classes were taken for before the job ran, so that the first plan was chosen by it."""

    def spent(self) -> Mapping[str, float]:
        """Seconds that the last step spent in each of them, all model-stages added up."""

    def learn(self, plan: Plan, lengths: Lengths, stage_s: Mapping[str, float], peak_bytes: int) -> Pricing:
        """After a step of `plan` with these responses: calibrated on the seconds of its model-stages and its peak.

        The peak is that of the fullest device; 0 where none was measured.
        """
