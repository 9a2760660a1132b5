"""Transitions carry the whole state over: in any order that the edges admit, onto any devices, time after time."""

from __future__ import annotations

from random import Random

import pytest

from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.transition.dag import transition_dag
from nereus.transition.ops import Op, Transition
from tests.builders import (
    ENDPOINT_OF,
    STAGE,
    degrees,
    make_emus,
    make_layout,
    make_model,
    make_plan,
    make_state,
    shape_texts,
    thin_state,
)
from tests.layout.bounds import lacking_bytes
from tests.layout.cases import SHAPES
from tests.layout.models import thin_trained_state
from tests.transition.interpreter import Interpreter
from tests.transition.scenarios import current_emus, planned, replay, target_plan, wrong_shards

TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))
UNTIED = thin_state(make_model(tied=False))
WAYS = [pytest.param(True, id="fused"), pytest.param(False, id="unfused")]


def shuffled(ops: tuple[Op, ...], random: Random) -> list[Op]:
    """The operations in a random order that `after` admits."""
    waiting, order = {op.id: op for op in ops}, list[Op]()
    while waiting:
        op = waiting[random.choice(sorted(name for name, op in waiting.items() if not set(op.after) & waiting.keys()))]
        order.append(waiting.pop(op.id))
    return order


def assert_carries_over(state: StateSpec, current: tuple[Emu, ...], transition: Transition, ops: list[Op]) -> None:
    assert wrong_shards(state, replay(state, current, ops), transition.result) == []


def on_any_devices(seed: int) -> tuple[tuple[Emu, ...], str, tuple[int, ...]]:
    """A plan on any of ten devices in any order, and another one."""
    random = Random(seed)
    source, target = random.choice(SHAPES), random.choice(SHAPES)
    sizes = (make_layout(text).size * degrees(text)["dp"] for text in (source, target))
    before, after = (tuple(random.sample(range(10), size)) for size in sizes)
    return make_emus(source, devices=before), target, after


# --- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", WAYS)
@pytest.mark.parametrize(
    "source", ["tp4 pp2", "tp2 pp2 dp2", "pp6", "tp3 pp2", "tp8", "dp7", "tp2 fsdp4", "fsdp2 dp4", "tp2 dp4 zero1"]
)
def test_transition_leaves_the_same_state_in_any_order_of_its_edges(source: str, fuse: bool) -> None:
    for seed, target in enumerate(SHAPES[::4]):
        current = current_emus(source, seed)
        transition = planned(TRAINED, current, target_plan(current, target), fuse=fuse)
        assert_carries_over(TRAINED, current, transition, shuffled(transition.ops, Random(seed)))


@pytest.mark.parametrize("fuse", WAYS)
def test_operations_that_move_read_nothing_that_a_destroy_has_released_at_once(fuse: bool) -> None:
    """Destroys run as soon as their edges let them: no later operation misses what they took."""
    for seed in range(60):
        current, target, devices = on_any_devices(seed)
        transition = planned(TRAINED, current, make_plan(target, devices=devices), fuse=fuse)
        run, waiting = Interpreter(TRAINED, current), list(transition.ops)
        while waiting:
            ready = [op for op in waiting if not set(op.after) & {other.id for other in waiting}]
            op = next((op for op in ready if op.is_release), ready[-1])
            run.run(op)
            waiting.remove(op)
        assert wrong_shards(TRAINED, run, transition.result) == []


# --- devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["tp4 dp2", "tp2 pp3", "pp6", "tp3 dp2", "tp8", "dp5", "fsdp8", "tp2 dp4 zero1"])
def test_transition_to_new_devices_leaves_the_global_state_cut_afresh(target: str) -> None:
    current = make_emus("tp2 pp2 dp2")
    size = make_layout(target).size * degrees(target)["dp"]
    transition = planned(UNTIED, current, make_plan(target, devices=range(20, 20 + size)))
    assert_carries_over(UNTIED, current, transition, list(transition.ops))


@pytest.mark.parametrize("fuse", WAYS)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_transition_onto_any_devices_leaves_the_global_state_cut_afresh(first: int, fuse: bool) -> None:
    for seed in range(first, first + 50):
        current, target, devices = on_any_devices(seed)
        plan = make_plan(target, devices=devices)
        transition = planned(TRAINED, current, plan, fuse=fuse)
        assert_carries_over(TRAINED, current, transition, list(transition.ops))
        assert [emu.endpoints for emu in transition.result] == [
            tuple(ENDPOINT_OF[device] for device in group) for group in plan.groups
        ]


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_transition_onto_any_devices_moves_what_its_endpoints_lack(first: int) -> None:
    """The lower bound holds for any assignment of ranks, not only for the best one."""
    for seed in range(first, first + 50):
        current, target, devices = on_any_devices(seed)
        transition = planned(TRAINED, current, make_plan(target, devices=devices))
        assert transition.num_bytes == lacking_bytes(TRAINED, current, transition.result).total(), seed


def test_replica_of_a_new_part_where_the_old_unit_still_is_gets_the_state_cut_afresh() -> None:
    state, current = make_state(make_model(tied=False)), make_emus("pp4")
    transition = planned(state, current, make_plan("pp2 dp2", devices=[0, 1, 4, 2]))
    assert_carries_over(state, current, transition, list(transition.ops))


@pytest.mark.parametrize("seed", [2])
def test_replica_of_a_new_part_moves_what_its_endpoints_lack(seed: int) -> None:
    current, target, devices = on_any_devices(seed)
    transition = planned(TRAINED, current, make_plan(target, devices=devices))
    assert transition.num_bytes == lacking_bytes(TRAINED, current, transition.result).total()


def test_replica_of_a_new_part_is_sent_only_what_the_old_unit_has_not_left_there() -> None:
    current = make_emus("tp2 pp3", devices=[2, 6, 3, 9, 7, 5])
    transition = planned(TRAINED, current, make_plan("tp2 dp3", devices=[0, 5, 2, 9, 6, 3]))
    assert transition.num_bytes == lacking_bytes(TRAINED, current, transition.result).total()


# --- time after time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", WAYS)
@pytest.mark.parametrize("form", ["plain", "zero1", "fsdp"])
def test_round_trip_over_every_small_plan_loses_nothing(form: str, fuse: bool) -> None:
    """Trap 14's geometry: one job that takes every plan in turn; each transition starts from what the last one left."""
    texts = shape_texts(8, form=form)
    current = current_emus(texts[0])
    for epoch, text in enumerate(Random(4).sample(texts, len(texts)), start=1):
        targets = {STAGE: target_plan(current, text)}
        transition = transition_dag({STAGE: current}, targets, {STAGE: TRAINED}, ENDPOINT_OF, epoch, fuse=fuse)
        assert_carries_over(TRAINED, current, transition, list(transition.ops))
        current = transition.result
