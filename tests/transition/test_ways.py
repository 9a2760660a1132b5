"""Swaps, chains and what cures a circle: each minimal case of ownership, with the code of the way that was found.

All model-stages exclude one another, and the pool has exactly the devices of the case, unless one is to spare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.errors import LayoutError
from nereus.transition.dag import Change
from nereus.transition.estimate import LinkRates
from nereus.transition.feasibility import MemoryCheck
from nereus.transition.ops import Transition
from nereus.transition.planning import planned
from nereus.transition.verdicts import Found
from tests.builders import ENDPOINT_OF, make_emus, make_model, make_plan, thin_state
from tests.transition.order_checker import assert_exclusive, assert_never_without_an_intact_unit
from tests.transition.scenarios import always, replay, wrong_shards

A, B, C = "a_generation", "b_inference", "c_training"
STATE = thin_state(make_model(tied=False))
SIZE = sum(4 * tensor.num_elements for tensor in STATE.tensors if tensor.dtype == "float32") + 8
"""Bytes of one unit: float32, and one counter of eight bytes."""


def change_of(
    current: Mapping[str, tuple[Emu, ...]], targets: Mapping[str, StagePlan], *, pool: int, quiesced: bool = False
) -> Change:
    """A change on the first `pool` devices."""
    return Change(
        current=current,
        targets=targets,
        states=dict.fromkeys(targets, STATE),
        endpoint_of={device: ENDPOINT_OF[device] for device in range(pool)},
        epoch=1,
        node_of={},
        exclusive=always,
        bucket_bytes=64,
        quiesced=quiesced,
    )


def find(change: Change, usable_bytes: float = float("inf")) -> tuple[Transition, MemoryCheck]:
    standing = [emu for emus in change.current.values() for emu in emus]
    return planned(change, standing, usable_bytes, LinkRates())


def assert_leads_there(change: Change, transition: Transition, *, exclusive: bool = True) -> None:
    """Every shard is where it has to be, no stage was ever without an intact unit, and exclusive ones never met."""
    for stage, emus in change.current.items():
        run = replay(STATE, emus, [op for op in transition.ops if op.stage == stage])
        made = [emu for emu in transition.result if emu.stage == stage]
        assert wrong_shards(STATE, run, made) == []
        assert {emu.endpoints for emu in made} == {
            tuple(change.endpoint_of[d] for d in group) for group in change.targets[stage].groups
        }
    for seed in range(5):
        assert_never_without_an_intact_unit(transition, [e for emus in change.current.values() for e in emus], seed)
    if exclusive:
        assert_exclusive(transition, change.current, change.exclusive)


def swap(pool: int, *, quiesced: bool = False) -> Change:
    """The only A is on 0 and goes to 1; the only B goes the other way."""
    current = {A: make_emus("tp1", stage=A, devices=[0]), B: make_emus("tp1", stage=B, devices=[1])}
    targets = {A: make_plan("tp1", stage=A, devices=[1]), B: make_plan("tp1", stage=B, devices=[0])}
    return change_of(current, targets, pool=pool, quiesced=quiesced)


def swap_of_two(pool: int = 4) -> Change:
    """Two replicas of A on 0 and 1, two of B on 2 and 3, and the other way round."""
    current = {A: make_emus("dp2", stage=A, devices=[0, 1]), B: make_emus("dp2", stage=B, devices=[2, 3])}
    targets = {A: make_plan("dp2", stage=A, devices=[2, 3]), B: make_plan("dp2", stage=B, devices=[0, 1])}
    return change_of(current, targets, pool=pool)


def chain() -> Change:
    """A goes where B is, B where C is, and C has a replica to spare: only the Destroy of C can be carried out at first."""
    current = {
        A: make_emus("tp1", stage=A, devices=[0]),
        B: make_emus("tp1", stage=B, devices=[1]),
        C: make_emus("dp2", stage=C, devices=[2, 3]),
    }
    targets = {
        A: make_plan("tp1", stage=A, devices=[1]),
        B: make_plan("tp1", stage=B, devices=[2]),
        C: make_plan("tp1", stage=C, devices=[3]),
    }
    return change_of(current, targets, pool=4)


def test_chain_is_found_by_the_paper_rule() -> None:
    """A Destroy need not be executable now: A waits for B, which waits for C."""
    change = chain()
    transition, _ = find(change)
    assert transition.found is Found.GREEDY
    assert [(op.stage[0], op.primitives[0]) for op in next(change.transitions()).ops] == [
        *[("c", "Destroy"), ("b", "Extend"), ("b", "Destroy"), ("a", "Extend"), ("a", "Destroy")],
    ]
    assert_leads_there(change, transition)


def test_swap_of_sole_units_is_refused_with_the_circle_named() -> None:
    named = r"Extend of a_generation, .*Destroy of b_inference, .*Extend of b_inference, .*Destroy of a_generation"
    with pytest.raises(LayoutError, match=named):
        find(swap(2))


def test_swap_with_a_device_to_spare_goes_by_a_third_place() -> None:
    """A goes to the spare device and leaves it again."""
    change = swap(3)
    transition, _ = find(change)
    assert transition.found is Found.DETOUR
    assert transition.counts == {"Extend": 3, "Destroy": 3}
    assert_leads_there(change, transition)


def test_spare_device_of_a_stage_that_stays_is_no_third_place() -> None:
    """On device 2 an unchanged model-stage runs, which excludes both."""
    change = replace(swap(3), standing=make_emus("tp1", stage=C, devices=[2]))
    with pytest.raises(LayoutError, match="circle"):
        find(change)


def test_swap_at_a_standstill_shares_the_devices_for_a_moment() -> None:
    change = swap(2, quiesced=True)
    transition, memory = find(change, usable_bytes=2 * SIZE + 2 * 64)
    assert (transition.found, memory.violation) == (Found.DETOUR, None)
    assert transition.counts == {"Extend": 2, "Destroy": 2}
    assert_leads_there(change, transition, exclusive=False)


def test_swap_at_a_standstill_still_has_to_fit() -> None:
    """Two units and buffers do not, and one stream of each unit's bytes needs the other's device too."""
    _, memory = find(swap(2, quiesced=True), usable_bytes=SIZE + 64)
    assert memory.violation is not None


def test_swap_of_two_replicas_goes_by_relays() -> None:
    """If all Extends read units that go, each waits for the other's: one survivor each, copied once, is enough."""
    change = swap_of_two()
    transition, _ = find(change)
    assert transition.found is Found.RE_CHOSEN
    assert transition.counts == {"Extend": 4, "Destroy": 4}
    assert_leads_there(change, transition)


def test_swap_of_two_replicas_reads_a_newborn_one() -> None:
    transition, _ = find(swap_of_two())
    made = {emu.unit for emu in transition.result}
    read = {move.source.unit for op in transition.ops for x in op.exchanges for move in getattr(x, "moves", ())}
    assert {unit.stage for unit in made & read} == {A, B}


def test_ways_are_the_same_each_time() -> None:
    assert find(swap_of_two()) == find(swap_of_two())
    assert find(swap(3)) == find(swap(3))


def test_stages_that_exclude_nobody_are_found_by_the_paper_rule() -> None:
    for change in (swap(2), swap_of_two()):
        transition, _ = find(replace(change, exclusive=lambda a, b: False))
        assert transition.found is Found.GREEDY
