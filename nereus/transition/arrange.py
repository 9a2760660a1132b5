"""Which device of a target set takes which rank, so that as many units of T_sub as possible stay where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.primitives import grouped, joined_slots
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId


def arrange(
    current: tuple[Emu, ...],
    wanted: StagePlan,
    device_of: Mapping[EndpointId, DeviceId],
    node_of: Mapping[DeviceId, int],
) -> StagePlan:
    """The same plan, its devices in an order in which its slots coincide with the current units of T_sub where they can.

    The devices of each unit that stay form slots of T_sub among themselves; those that are left over form new slots in
    order. Slots are then joined node by node, so that a TP group that is made of several stays inside a node where it can.
    """
    layout, dp = wanted.layout, wanted.dp
    sub = current[0].layout.common(layout)
    free = sorted(wanted.devices)
    slots: list[tuple[DeviceId, ...]] = []
    for emu in current:
        stay = [endpoint for endpoint in emu.endpoints if device_of.get(endpoint) in free]
        whole = [emu.endpoints] if len(stay) == len(emu.endpoints) and sub == emu.layout else []
        for slot in whole or (grouped(emu, sub, stay) if sub != emu.layout else ()):
            held = tuple(device_of[endpoint] for endpoint in slot)
            if len(slots) < dp * layout.size // sub.size:
                slots.append(held)
                free = [device for device in free if device not in held]
    slots.extend(tuple(free[i : i + sub.size]) for i in range(0, len(free), sub.size))
    slots.sort(key=lambda slot: (node_of[slot[0]], slot))
    per_unit = layout.size // sub.size
    ordered: list[DeviceId] = []
    for i in range(0, len(slots), per_unit):
        names = [tuple(map(str, slot)) for slot in slots[i : i + per_unit]]
        ordered.extend(int(device) for device in joined_slots(names, layout, sub))
    return replace(wanted, devices=tuple(ordered))
