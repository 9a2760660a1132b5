"""All that a decision is taken on: the plan and its units, the pool, what is known of costs, and the lengths to come.

JobState at a boundary -> Snapshot -> planner process -> proposals          what-if: dataclasses.replace
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nereus.emu.plan import DeviceId, Plan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.planner.pricing import Devices, Lengths, Pricing
from nereus.policy.admission import Terms
from nereus.transition.collectives import GroupKey
from nereus.transition.estimate import LinkRates


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision is taken on; what-if is `dataclasses.replace`."""

    plan: Plan
    emus: Mapping[str, tuple[Emu, ...]]
    endpoint_of: Mapping[DeviceId, EndpointId]
    node_of: Mapping[DeviceId, int]
    usable: tuple[DeviceId, ...]
    """Devices that a target plan may use: there, and not leaving."""
    states: Mapping[str, StateSpec]
    pricing: Pricing
    lengths: Lengths
    """The responses of the steps to come."""
    links: LinkRates
    bucket_bytes: int
    """The most that moving state holds in buffers on a device each way."""
    ready: frozenset[GroupKey] = frozenset()
    """Communicators that need not be made for a transition."""
    pins: frozenset[str] = frozenset()
    """Model-stages whose stage plan stays as it is."""
    terms: Terms | None = None
    """What the answer will be judged by: what they admit first is the last proposal. None: all are wanted, compiled."""
    is_bound: bool = True
    """Whether all units of the plan are in force. If not, a plan of just the units that stand is a proposal too."""
    restore_s: float | None = None
    """Where no unit stands, what reading the state from its checkpoint is expected to take: as long as writing it."""

    def l_step_s(self) -> float:
        """Predicted seconds per step of the plan in force."""
        return self.pricing.step_seconds(self.plan, self.lengths)

    def peak_bytes(self) -> int:
        """Predicted peak of the plan in force."""
        return max(self.pricing.peaks(self.plan, self.lengths).values())

    @property
    def pool(self) -> Devices:
        """The devices that a target plan may use."""
        return Devices(self.usable, self.node_of)

    @property
    def endpoint_nodes(self) -> dict[EndpointId, int]:
        """The node of each endpoint."""
        return {endpoint: self.node_of[device] for device, endpoint in self.endpoint_of.items()}
