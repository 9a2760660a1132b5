"""Release before acquire: when a unit goes, what waits for it, and what stands until the proof (paper, section 6)."""

from __future__ import annotations

from random import Random

import pytest

from nereus.errors import LayoutError
from nereus.layout.catalog import StateSpec
from nereus.transition.verdicts import Found
from tests.builders import degrees, make_emus, make_layout, make_model, make_plan, shape_texts, thin_state
from tests.transition.scenarios import always, of_stages, planned

SHAPES = [text for form in ("plain", "fsdp", "zero1") for text in shape_texts(6, form=form)]
UNTIED = thin_state(make_model(tied=False))
A, B = "a_training", "b_training"


def test_ready_release_goes_before_a_ready_acquisition() -> None:
    current = {
        "actor_generation": make_emus("tp1", stage="actor_generation", devices=[0]),
        "critic_training": make_emus("dp2", stage="critic_training", devices=[1, 2]),
    }
    targets = {
        "actor_generation": make_plan("dp2", stage="actor_generation", devices=[0, 2]),
        "critic_training": make_plan("dp1", stage="critic_training", devices=[1]),
    }
    assert [op.primitives for op in of_stages(current, targets).ops] == [("Destroy",), ("Extend",)]


def test_release_of_a_stage_goes_before_its_own_acquisition_of_the_same_devices() -> None:
    current = make_emus("tp2 dp2")
    transition = planned(UNTIED, current, make_plan("tp2 dp2", devices=[0, 1, 2, 4]), fuse=False)
    assert [op.primitives for op in transition.ops] == [("Destroy",), ("Extend",)]


def test_replica_that_goes_is_read_first_where_the_new_one_needs_what_it_holds() -> None:
    """Device 2 has the shard of rank 0 already: it is copied there, and only device 4 is sent anything."""
    current = make_emus("tp2 dp2")
    transition = planned(UNTIED, current, make_plan("tp2 dp2", devices=[0, 1, 2, 4]))
    assert [op.primitives for op in transition.ops] == [("Extend",), ("Destroy",)]
    assert transition.ops[1].after == (transition.ops[0].id,)
    assert {x.group.members for x in transition.ops[0].exchanges} == {("d1.0", "d4.0")}


def test_replica_that_goes_is_released_first_where_the_new_one_needs_nothing_of_it() -> None:
    """The ranks lie the other way round: no device holds what it needs, so nothing is gained by holding both."""
    rows = StateSpec(tuple(tensor for tensor in UNTIED.tensors if tensor.axis == 0 and tensor.num_elements % 2 == 0), 6)
    transition = planned(rows, make_emus("tp2 dp2"), make_plan("tp2 dp2", devices=[0, 1, 3, 2]))
    assert [op.primitives for op in transition.ops] == [("Destroy",), ("Extend",)]


@pytest.mark.parametrize("fuse", [True, False])
def test_generation_that_acquires_comes_after_the_destroy_that_a_split_makes_possible(fuse: bool) -> None:
    """Figure 6 in small: reward (tp1, pp4) -> (tp1, pp2) gives up two devices, the actor extends onto them."""
    current = {
        "actor_generation": make_emus("tp2", stage="actor_generation", devices=[0, 1]),
        "reward_inference": make_emus("pp4", stage="reward_inference", devices=[4, 5, 6, 7]),
    }
    targets = {
        "actor_generation": make_plan("tp2 dp2", stage="actor_generation", devices=[0, 1, 5, 7]),
        "reward_inference": make_plan("pp2", stage="reward_inference", devices=[4, 6]),
    }
    *before, extend = of_stages(current, targets, exclusive=always, fuse=fuse).ops
    assert [op.primitives for op in before] == [("Split",), ("Destroy",)]
    assert (extend.primitives, extend.after) == (("Extend",), (before[-1].id,))


# --- edges between model-stages ----------------------------------------------------------------------------------------

SWAPPED = {A: make_emus("pp4", stage=A, devices=range(4)), B: make_emus("pp4", stage=B, devices=range(4, 8))}
"""Two units of (1, 4) that become (2, 2): T_sub is (1, 2), so each keeps one part and gives the other's devices up."""

SWAPS = {
    A: make_plan("tp2 pp2", stage=A, devices=[0, 5, 2, 7]),
    B: make_plan("tp2 pp2", stage=B, devices=[4, 1, 6, 3]),
}


def test_stages_that_swap_devices_through_fused_movements_go_unfused() -> None:
    """Fused, each would release the other's devices only after it had got its own: a circle."""
    transition = of_stages(SWAPPED, SWAPS, exclusive=always)
    assert transition.found is Found.RE_CHOSEN
    assert transition.ops == of_stages(SWAPPED, SWAPS, exclusive=always, fuse=False).ops
    assert {len(op.primitives) for op in transition.ops} == {1}
    assert transition.counts == {"Split": 2, "Destroy": 2, "Extend": 2, "Merge": 2}


def test_stages_that_may_share_devices_swap_them_fused() -> None:
    transition = of_stages(SWAPPED, SWAPS)
    assert [op.primitives for op in transition.ops if op.makes] == [("Split", "Extend", "Merge")] * 2


def test_sole_units_that_swap_devices_are_refused_with_the_circle_named() -> None:
    current = {A: make_emus("tp1", stage=A, devices=[0]), B: make_emus("tp1", stage=B, devices=[1])}
    targets = {A: make_plan("tp1", stage=A, devices=[1]), B: make_plan("tp1", stage=B, devices=[0])}
    with pytest.raises(LayoutError, match=r"circle.*a_training.*b_training"):
        of_stages(current, targets, exclusive=always, spare=False)


def test_stages_without_a_common_device_wait_for_nothing_of_each_other() -> None:
    current = {A: make_emus("tp2", stage=A, devices=[0, 1]), B: make_emus("dp2", stage=B, devices=[4, 5])}
    targets = {
        A: make_plan("tp2 dp2", stage=A, devices=[0, 1, 2, 3]),
        B: make_plan("dp1", stage=B, devices=[4]),
    }
    assert [op.after for op in of_stages(current, targets, exclusive=always).ops] == [(), ()]


def test_stage_that_acquires_waits_for_a_zero1_stage_to_give_the_device_up() -> None:
    current = {A: make_emus("tp1", stage=A, devices=[0]), B: make_emus("dp3 zero1", stage=B, devices=[1, 2, 3])}
    targets = {
        A: make_plan("dp2", stage=A, devices=[0, 3]),
        B: make_plan("dp2 zero1", stage=B, devices=[1, 2]),
    }
    extend = next(op for op in of_stages(current, targets, exclusive=always).ops if op.stage == A)
    assert extend.after


def drawn(random: Random, stages: tuple[str, ...]) -> dict[str, tuple[str, list[int]]]:
    """A plan for each model-stage, on disjoint devices of fourteen."""
    while True:
        texts = [random.choice(SHAPES) for _ in stages]
        sizes = [make_layout(text).size * degrees(text)["dp"] for text in texts]
        if sum(sizes) <= 14:
            break
    devices = iter(random.sample(range(14), sum(sizes)))
    return {s: (text, [next(devices) for _ in range(n)]) for s, text, n in zip(stages, texts, sizes, strict=True)}


@pytest.mark.parametrize("fuse", [True, False])
def test_exclusive_stages_never_own_a_device_together(fuse: bool) -> None:
    """Whoever acquires a device waits, directly or not, for all that exclusive stages release of it."""
    admitted = 0
    for seed in range(200):
        random, stages = Random(seed), ("a_training", "b_inference", "c_generation")
        current = {s: make_emus(text, stage=s, devices=on) for s, (text, on) in drawn(random, stages).items()}
        targets = {s: make_plan(text, stage=s, devices=on) for s, (text, on) in drawn(random, stages).items()}
        try:
            transition = of_stages(current, targets, always, fuse=fuse)
        except LayoutError:
            continue
        admitted += 1
        owner = {endpoint: s for s, emus in current.items() for emu in emus for endpoint in emu.endpoints}
        before: dict[str, set[str]] = {}
        for op in transition.ops:
            before[op.id] = set(op.after).union(*(before[name] for name in op.after))
            released = {(s.endpoint, s.unit.stage) for o in transition.ops if o.id in before[op.id] for s in o.frees}
            acquired = {endpoint for emu in op.makes for endpoint in emu.endpoints}
            others = {(e, owner[e]) for e in acquired if owner.get(e, op.stage) != op.stage}
            assert others <= released, (seed, op.id)
    assert admitted > 100


# --- what is held until the proof --------------------------------------------------------------------------------------


def test_destroy_that_nothing_waits_for_is_held_until_the_proof() -> None:
    transition = planned(UNTIED, make_emus("dp2"), make_plan("dp1"))
    assert (transition.moving, [op.primitives for op in transition.held]) == ((), [("Destroy",)])


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(("source", "target"), [("tp2", "tp1"), ("pp4", "pp2"), ("fsdp2", "fsdp1")])
def test_old_unit_stands_until_the_proof_where_nothing_waits_for_its_devices(source: str, target: str, fuse: bool) -> None:
    transition = planned(UNTIED, make_emus(source), make_plan(target), fuse=fuse)
    assert [site for op in transition.moving for site in op.frees] == []
