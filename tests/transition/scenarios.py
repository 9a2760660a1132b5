"""Pairs of plans over at most eight devices, and the devices of each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random

import numpy as np

from nereus.emu.plan import StagePlan
from nereus.emu.primitives import Split
from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.layout.tensors import TensorRef
from nereus.transition.arrange import arrange
from nereus.transition.dag import transition_dag
from nereus.transition.local import LocalDag, local_dag
from nereus.transition.ops import BUCKET_BYTES, Op, Transition
from nereus.transition.ownership import Exclusive
from nereus.transition.residency import most_resident
from nereus.transition.streaming import streamed
from tests.builders import (
    DEVICE_OF,
    ENDPOINT_OF,
    ONE_NODE,
    UnitNames,
    degrees,
    devices_of,
    make_emus,
    make_layout,
    make_plan,
    shape_texts,
)
from tests.transition.interpreter import Interpreter, Key, cut_afresh

SHAPES = shape_texts(8)
NOTHING = StateSpec((), 8)
"""A state without tensors, where only the operations matter."""


def current_emus(text: str, seed: int = 0) -> tuple[Emu, ...]:
    """The EMUs of a plan on the first devices, in an order that depends on the seed; 0 keeps them sorted."""
    size = make_layout(text).size * degrees(text)["dp"]
    devices = list(range(size))
    if seed:
        Random(seed).shuffle(devices)
    return make_emus(text, devices=devices)


def target_plan(current: tuple[Emu, ...], text: str, state: StateSpec | None = None) -> StagePlan:
    """A target on the current devices, and on more or on fewer of them; fewer are those of whole units of T_sub.

    With the state, each device takes the rank of which it holds most, as transitions of a job do.
    """
    layout, found = make_layout(text), degrees(text)
    held = [device for unit in sub_units(current, text) for device in devices_of(unit)]
    free = [device for device in range(16) if device not in held]
    devices = [*held, *free][: layout.size * found["dp"]]
    plan = arrange(current, make_plan(text, devices=devices), DEVICE_OF, ONE_NODE)
    return plan if state is None else most_resident(plan, current, state, DEVICE_OF, ONE_NODE)


def planned(
    state: StateSpec,
    current: tuple[Emu, ...],
    plan: StagePlan,
    *,
    fuse: bool = True,
    stream: bool = False,
    bucket_bytes: int = BUCKET_BYTES,
) -> Transition:
    """The transition of one model-stage; as a stream, with every operation that moves in buckets."""
    states = {plan.stage: state}
    transition = transition_dag(
        {plan.stage: current}, {plan.stage: plan}, states, ENDPOINT_OF, 1, fuse=fuse, bucket_bytes=bucket_bytes
    )
    return streamed(transition, {plan.stage}, current, states) if stream else transition


def always(first: str, second: str) -> bool:
    """All model-stages run concurrently, so none shares a device with another."""
    return True


def of_stages(
    current: Mapping[str, tuple[Emu, ...]],
    targets: Mapping[str, StagePlan],
    exclusive: Exclusive = lambda a, b: False,
    *,
    fuse: bool = True,
    spare: bool = True,
) -> Transition:
    """The transition of several model-stages without tensors, on nodes of eight; with devices to spare or none."""
    states = dict.fromkeys(targets, NOTHING)
    node_of = {endpoint: device // 8 for endpoint, device in DEVICE_OF.items()}
    of_target = {device for plan in targets.values() for device in plan.devices}
    named = {endpoint for emus in current.values() for emu in emus for endpoint in emu.endpoints}
    pool = {d: e for d, e in ENDPOINT_OF.items() if spare or d in of_target or e in named}
    return transition_dag(current, targets, states, pool, 1, node_of, exclusive, fuse=fuse)


def replay(state: StateSpec, current: tuple[Emu, ...], ops: Iterable[Op]) -> Interpreter:
    """The shards of all endpoints after these operations."""
    run = Interpreter(state, current)
    for op in ops:
        run.run(op)
    return run


def wrong_shards(state: StateSpec, run: Interpreter, emus: Iterable[Emu]) -> list[tuple[Key, TensorRef]]:
    """Where the shards of these units are not, element by element, the global state cut afresh for them."""
    return [
        (site, ref)
        for site, expected in cut_afresh(state, emus).items()
        for ref, values in expected.items()
        if not np.array_equal(run.shards[site][ref], values)
    ]


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


def dag_between(current: tuple[Emu, ...], text: str, devices: list[int] | None = None) -> LocalDag:
    plan = target_plan(current, text) if devices is None else make_plan(text, devices=devices)
    return local_dag(current, plan, ENDPOINT_OF, birth_epoch=1)


def written(dag: LocalDag) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Each step as its verb, and the devices of the units that it makes, or ends if it makes none."""
    return [
        (type(step.primitive).__name__, [devices_of(emu) for emu in step.primitive.makes or step.primitive.ends])
        for step in dag.steps
    ]


def counts(dag: LocalDag) -> Counter[str]:
    return Counter(type(step.primitive).__name__ for step in dag.steps)
