"""A lower bound of L_tran, from units and target plans alone: what is too dear even so needs no transition DAG.

    target rank, its device -> bytes that it lacks -> seconds to receive them, at the fastest link that may bring them

A device's operations follow each other (one transfer lane), whatever their order: it takes at least what it receives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.moves import NodeOf
from nereus.transition.estimate import LinkRates
from nereus.transition.residency import shared_bytes

SMALLEST_GROUP = 2
"""Members of a communicator at least: whoever receives anything from another endpoint makes one."""


ROUNDING = 1e-9
"""Share that the bound leaves for sums in another order: of a single Extend it is exact."""


@dataclass(frozen=True, slots=True)
class Least:
    """What no way of a change does without."""

    seconds: float
    """Of L_tran."""
    num_bytes: int
    """Between endpoints."""


def least_move(
    current: Mapping[str, tuple[Emu, ...]],
    targets: Mapping[str, StagePlan],
    states: Mapping[str, StateSpec],
    endpoint_of: Mapping[DeviceId, EndpointId],
    node_of: NodeOf,
    rates: LinkRates,
) -> Least:
    """At least so long, and so many bytes, from the units of each changed model-stage to its target plan."""
    busy: defaultdict[EndpointId, float] = defaultdict(float)
    total = 0
    for stage, plan in targets.items():
        near = {node_of.get(endpoint) for emu in current[stage] for endpoint in emu.endpoints}
        for endpoint, num_bytes in missing_of(current[stage], plan, states[stage], endpoint_of).items():
            total += num_bytes
            inside = rates.near_bytes_s if node_of.get(endpoint) in near else None
            busy[endpoint] += rates.op_s + num_bytes / max(rates.wire_bytes_s, inside or 0.0)
    setup = rates.setup_scale * SMALLEST_GROUP * rates.group_s if busy else 0.0
    seconds = setup + rates.scale * (max(busy.values(), default=0.0) + rates.op_s)
    return Least(seconds * (1 - ROUNDING), total)


def missing_of(
    current: tuple[Emu, ...], plan: StagePlan, state: StateSpec, endpoint_of: Mapping[DeviceId, EndpointId]
) -> dict[EndpointId, int]:
    """Bytes that each endpoint of a target plan does not hold of what it needs; those that lack nothing are left out."""
    held = {endpoint: (emu, rank) for emu in current for rank, endpoint in enumerate(emu.endpoints)}
    found: dict[EndpointId, int] = {}
    for index, group in enumerate(plan.groups):
        wanted = plan.optimizer(index)
        for rank, device in enumerate(group):
            endpoint = endpoint_of[device]
            lacks = state.shard_bytes(plan.layout, rank, optimizer=wanted)
            if endpoint in held:
                emu, has = held[endpoint]
                lacks -= int(shared_bytes(state, emu.layout, emu.optimizer, plan.layout, wanted)[has, rank])
            if lacks > 0:
                found[endpoint] = lacks
    return found
