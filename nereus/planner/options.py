"""One way to run a holder of devices of an outline, with what it costs: a row of the search, in words.

Pricer -> Option -> Rules, Rows of a Problem, PlannedStep
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nereus.cost.components import Component
from nereus.cost.execution import Execution, Offload, Recompute

STAYS = frozenset((Component.PARAMETERS, Component.OPTIMIZER))
"""What an idle holder keeps; gradients and activations are gone at the end of its stage (paper, section 4.3)."""

LayoutClass: TypeAlias = tuple[int, int, int, int]
"""Device kind, tp, pp and ep."""

Degrees: TypeAlias = tuple[int, int, int, int]
"""Of parallelism: tp, pp, ep and dp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run a holder of devices, and what it costs."""

    holder: str
    kind: int
    """Of its devices, as a place in the pricer's kinds."""
    run: Execution
    """How it runs; of a generation replica, `micro_batch` is how many sequences generate at the same time. Its nodes are as
    large as the quantum, where that decides which devices are neighbours."""
    quantum: int
    """In each node its devices are a multiple of it."""
    seconds: Mapping[str, float]
    """By model-stage that runs on it: of one RL step."""
    memory: Mapping[Component, float]
    """Bytes of the fullest device by component, at the longest responses."""
    host_bytes: int = 0
    """For each device, in the memory of its node's host."""
    pinned: bool = False
    """Whether the outline settles something about the holder."""

    @property
    def num_devices(self) -> int:
        return self.run.devices

    @property
    def layout(self) -> LayoutClass:
        """What a weight sync depends on."""
        return self.kind, self.run.tp, self.run.pp, self.run.ep

    @property
    def degrees(self) -> Degrees:
        """What its devices multiply up to."""
        return self.run.tp, self.run.pp, self.run.ep, self.run.dp

    @property
    def resident_bytes(self) -> float:
        """On each device, also while it is idle."""
        return sum(size for part, size in self.memory.items() if self._stays(part))

    @property
    def active_bytes(self) -> float:
        """On top while it computes."""
        return sum(size for part, size in self.memory.items() if not self._stays(part))

    def _stays(self, part: Component) -> bool:
        comes = part is Component.PARAMETERS and self.run.offload is Offload.PARAMETERS
        return part in STAYS and not comes

    @property
    def recomputes(self) -> bool:
        """Whether the backward computes whole layers again."""
        return self.run.recompute is Recompute.FULL

    @property
    def choice(self) -> dict[str, int | bool | str]:
        """How it runs, in the words of a plan file."""
        run = self.run
        degrees = {"tp": run.tp, "pp": run.pp, "dp": run.dp, "ep": run.ep, "micro_batch": run.micro_batch}
        return {**degrees, "recompute": self.recomputes, "zero1": run.zero1, "offload": str(run.offload)}

    def __str__(self) -> str:
        offloads = self.run.offload is not Offload.NONE
        extras = (" recompute", self.recomputes), (" zero1", self.run.zero1), (f" offload {self.run.offload}", offloads)
        extra = "".join(text for text, is_on in extras if is_on)
        pinned = " (pinned)" if self.pinned else ""
        experts = f" ep{self.run.ep}" if self.run.ep > 1 else ""
        return f"tp{self.run.tp} pp{self.run.pp}{experts} dp{self.run.dp} mb{self.run.micro_batch}{extra}{pinned}"
