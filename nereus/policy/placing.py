"""Where a target plan goes on the pool: devices that its model-stages have already first, ranks by what resides on them.

StagePlan of the search, Snapshot -> seats or the nearest devices -> ranks with the most residency -> StagePlan
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nereus.emu.plan import DeviceId, StagePlan
from nereus.planner.pricing import Target
from nereus.planner.seats import settled
from nereus.policy.snapshot import Snapshot
from nereus.transition.arrange import arrange
from nereus.transition.residency import most_resident


def place(snapshot: Snapshot, plan: StagePlan, seats: Sequence[DeviceId] | None = None) -> StagePlan:
    """Choose devices for a stage plan, unless it has seats, and rank them by residency, if anything resides."""
    devices = list(seats) if seats is not None else _nearest(snapshot, plan)
    device_of = {endpoint: device for device, endpoint in snapshot.endpoint_of.items()}
    node_of, wanted = snapshot.node_of, replace(plan, devices=tuple(devices))
    current, state = snapshot.emus[plan.stage], snapshot.states[plan.stage]
    if not current:
        return wanted
    placed = most_resident(arrange(current, wanted, device_of, node_of), current, state, device_of, node_of)
    in_order = replace(placed, devices=tuple(sorted(devices, key=lambda d: (node_of[d], d))))
    # Residency must not tear a TP group apart: whole groups node by node instead, which the search has counted.
    return in_order if _crosses_nodes(placed, node_of) and not _crosses_nodes(in_order, node_of) else placed


def _nearest(snapshot: Snapshot, plan: StagePlan) -> list[DeviceId]:
    """Devices for a stage plan: those that it has first, whole TP groups node by node."""
    held = set(snapshot.plan.stages[plan.stage].devices)
    by_node: dict[int, list[DeviceId]] = {}
    for device in sorted(snapshot.usable, key=lambda d: (d not in held, d)):
        by_node.setdefault(snapshot.node_of[device], []).append(device)
    whole = [
        device
        for node in sorted(by_node, key=lambda n: (-sum(d in held for d in by_node[n]), n))
        for device in by_node[node][: len(by_node[node]) // plan.layout.tp * plan.layout.tp]
    ]
    rest = [device for device in snapshot.usable if device not in whole]
    return [*whole, *rest][: len(plan.devices)]


def seats_of(snapshot: Snapshot, target: Target) -> dict[str, tuple[DeviceId, ...]]:
    """The devices of a target that says where its model-stages lie: as many as can be stay where they are."""
    position = {device: at for at, device in enumerate(snapshot.usable)}
    held = {name: {position[d] for d in plan.devices if d in position} for name, plan in snapshot.plan.stages.items()}
    places = {name: plan.devices for name, plan in target.stages.items()}
    seats = settled(places, [snapshot.node_of[device] for device in snapshot.usable], held)
    return {stage: tuple(snapshot.usable[at] for at in positions) for stage, positions in seats.items()}


def _crosses_nodes(plan: StagePlan, node_of: Mapping[DeviceId, int]) -> bool:
    """Whether some TP group has devices on more than one node."""
    tp = plan.layout.tp
    groups = (plan.devices[i : i + tp] for i in range(0, len(plan.devices), tp))
    return any(len({node_of[device] for device in group}) > 1 for group in groups)
