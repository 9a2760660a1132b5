"""The EMU: one DP replica of a model-stage, the unit over which all adaptation is expressed.

EMU = <M, T, R, theta, omega> (paper, Eq. (1) and section 5): the stage and its layout and endpoints are here, the shards
theta and omega are in the shard stores of the endpoints. A unit is never edited: primitives make new units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nereus.emu.plan import DeviceId, StagePlan
from nereus.errors import LayoutError
from nereus.layout.catalog import EndpointId, UnitId
from nereus.layout.layout import UNSHARDED, Layout, OptimizerShard
from nereus.layout.tensors import CanonicalTensor, Kind, Place

COUNTERS = ("updates", "model_version", "policy_version", "position")
"""The scalars of the logical state Lambda = (theta, omega, c, v, p): optimizer updates, the versions of the model-stage and
of the policy that it holds, and the minibatch position of the last completed update."""


def counter_tensors() -> tuple[CanonicalTensor, ...]:
    """The counters as canonical tensors, so that they are moved and digested like everything else."""
    return tuple(CanonicalTensor(name, Kind.SCALAR, (), "int64", Place.EVERYWHERE) for name in COUNTERS)


@dataclass(frozen=True, slots=True)
class Emu:
    """One unit; the order of its endpoints is the rank order of its layout."""

    unit: UnitId
    layout: Layout
    endpoints: tuple[EndpointId, ...]
    optimizer: OptimizerShard = UNSHARDED
    """Which part of the optimizer state the unit keeps (ZeRO-1)."""

    def __post_init__(self) -> None:
        if len(self.endpoints) != self.layout.size:
            raise LayoutError(f"unit {self.unit}: {len(self.endpoints)} endpoints for {self.layout}")

    @property
    def stage(self) -> str:
        return self.unit.stage

    def rank_of(self, endpoint: EndpointId) -> int:
        return self.endpoints.index(endpoint)


def phi(plan: StagePlan, endpoint_of: Mapping[DeviceId, EndpointId], birth_epoch: int) -> tuple[Emu, ...]:
    """The EMU collection Phi(pi_M) of a stage plan, as newborn units (paper, section 5)."""
    return tuple(
        Emu(UnitId(plan.stage, i, birth_epoch), plan.layout, tuple(endpoint_of[d] for d in group), plan.optimizer(i))
        for i, group in enumerate(plan.groups)
    )
