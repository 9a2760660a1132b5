"""Pairs of plans over at most eight devices, and the devices of each target."""

from __future__ import annotations

from random import Random

from nereus.emu.plan import StagePlan
from nereus.emu.primitives import Split
from nereus.emu.unit import Emu
from nereus.transition.arrange import arrange
from nereus.transition.local import LocalDag
from tests.builders import (
    DEVICE_OF,
    ONE_NODE,
    STAGE,
    UnitNames,
    degrees,
    devices_of,
    make_emus,
    make_layout,
    shape_texts,
)

SHAPES = shape_texts(8)


def current_emus(text: str, seed: int = 0) -> tuple[Emu, ...]:
    """The EMUs of a plan on the first devices, in an order that depends on the seed; 0 keeps them sorted."""
    size = make_layout(text).size * degrees(text)["dp"]
    devices = list(range(size))
    if seed:
        Random(seed).shuffle(devices)
    return make_emus(text, devices=devices)


def target_plan(current: tuple[Emu, ...], text: str) -> StagePlan:
    """A target on the current devices, and on more or on fewer of them; fewer are those of whole units of T_sub."""
    layout, dp = make_layout(text), degrees(text)["dp"]
    held = [device for unit in sub_units(current, text) for device in devices_of(unit)]
    free = [device for device in range(16) if device not in held]
    devices = [*held, *free][: layout.size * dp]
    return arrange(current, STAGE, layout, dp, devices, DEVICE_OF, ONE_NODE)


def sub_units(current: tuple[Emu, ...], text: str) -> list[Emu]:
    """The current units, split to T_sub = (gcd(tp, tp'), gcd(pp, pp'))."""
    sub = current[0].layout.common(make_layout(text))
    if sub == current[0].layout:
        return list(current)
    return [part for emu in current for part in Split.of(emu, sub, UnitNames(epoch=9)).parts]


def any_topological_order(dag: LocalDag, random: Random) -> list[int]:
    """The steps of a local DAG in a random order that its edges admit. Fails on a cycle."""
    waiting, order = set(range(len(dag.steps))), list[int]()
    while waiting:
        ready = sorted(index for index in waiting if not dag.steps[index].after & waiting)
        assert ready, "the DAG has a cycle"
        order.append(random.choice(ready))
        waiting.remove(order[-1])
    return order
