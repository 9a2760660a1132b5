"""Which device takes which rank: the most bytes stay, against every permutation of small plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from nereus.emu.plan import DeviceId, StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.transition.arrange import arrange
from nereus.transition.residency import most_resident
from tests.builders import (
    DEVICE_OF,
    ENDPOINT_OF,
    ONE_NODE,
    degrees,
    make_emus,
    make_layout,
    make_model,
    make_plan,
    rank_masks,
)
from tests.layout.bounds import lacking_bytes, resident_masks, width
from tests.layout.cases import SHAPES
from tests.layout.models import thin_trained_state

TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))
SMALL = [text for text in SHAPES if make_layout(text).size * degrees(text)["dp"] <= 5]
TWO_NODES = {device: device // 4 for device in ONE_NODE}


def placed(plan: StagePlan, current: tuple[Emu, ...], node_of: dict[DeviceId, int] = ONE_NODE) -> StagePlan:
    return most_resident(plan, current, TRAINED, DEVICE_OF, node_of)


def random_case(seed: int, texts: list[str] = SHAPES) -> tuple[tuple[Emu, ...], StagePlan]:
    """Units on any of ten devices, and another plan on any of them."""
    random = Random(seed)
    source, target = random.choice(texts), random.choice(texts)
    before, after = (random.sample(range(10), make_layout(t).size * degrees(t)["dp"]) for t in (source, target))
    return make_emus(source, devices=before), make_plan(target, devices=after)


def units_of(plan: StagePlan) -> tuple[Emu, ...]:
    text = f"tp{plan.layout.tp} pp{plan.layout.pp} fsdp{plan.layout.fsdp} dp{plan.dp}{' zero1' if plan.zero1 else ''}"
    return make_emus(text, devices=plan.devices, epoch=1)


def stays(state: StateSpec, current: tuple[Emu, ...], plan: StagePlan) -> list[list[int]]:
    """Bytes that each device of a plan, in order, has of what each rank needs."""
    have = resident_masks(state, current)
    table: list[list[int]] = [[0] * len(plan.devices) for _ in plan.devices]
    rank = {endpoint: index for index, endpoint in enumerate(ENDPOINT_OF[device] for device in plan.devices)}
    for emu in units_of(plan):
        for endpoint, tensor, mask in rank_masks(state, emu):
            for holder, row in rank.items():
                known = have.get((holder, tensor.ref))
                if known is not None:
                    table[row][rank[endpoint]] += int((mask & known).sum()) * width(tensor)
    return table


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_assignment_keeps_as_many_bytes_as_the_best_of_all_permutations(first: int) -> None:
    for seed in range(first, first + 20):
        current, plan = random_case(seed, SMALL)
        table = stays(TRAINED, current, plan)
        best = max(sum(table[d][r] for r, d in enumerate(order)) for order in permutations(range(len(table))))
        total = sum(lacking_bytes(TRAINED, (), units_of(plan)).values())
        assert lacking_bytes(TRAINED, current, units_of(placed(plan, current))).total() == total - best, seed


def test_assignment_uses_the_devices_of_the_plan_and_nothing_else_changes() -> None:
    for seed in range(80):
        current, plan = random_case(seed)
        found = placed(plan, current)
        assert sorted(found.devices) == sorted(plan.devices)
        assert replace(found, devices=plan.devices) == plan


def test_assignment_never_lacks_more_than_the_given_one() -> None:
    for seed in range(80):
        current, plan = random_case(seed)
        before, after = (lacking_bytes(TRAINED, current, units_of(p)).total() for p in (plan, placed(plan, current)))
        assert after <= before, seed


def test_assignment_is_the_same_each_time_and_is_left_as_it_is() -> None:
    for seed in range(40):
        current, plan = random_case(seed)
        found = placed(plan, current)
        assert found == placed(plan, current) == placed(found, current)


@pytest.mark.parametrize("text", SHAPES[::9])
def test_plan_that_stays_keeps_its_order(text: str) -> None:
    current = make_emus(text)
    assert placed(make_plan(text), current) == make_plan(text)


def crossings(plan: StagePlan, node_of: dict[DeviceId, int]) -> int:
    """TP groups on more than one node."""
    groups = [plan.devices[i : i + plan.layout.tp] for i in range(0, len(plan.devices), plan.layout.tp)]
    return sum(len({node_of[device] for device in group}) > 1 for group in groups)


def test_assignment_sends_no_tp_group_over_more_nodes() -> None:
    """A TP group talks in every layer; what a change of plan saves once is not worth that."""
    for seed in range(80):
        current, plan = random_case(seed)
        arranged = arrange(current, plan, DEVICE_OF, TWO_NODES)
        found = placed(arranged, current, TWO_NODES)
        assert crossings(found, TWO_NODES) <= crossings(arranged, TWO_NODES), seed


def test_endpoint_that_is_on_no_device_of_the_plan_does_not_count() -> None:
    current, plan = make_emus("tp2", devices=[0, 1]), make_plan("tp2", devices=[4, 5])
    assert placed(plan, current) == plan
