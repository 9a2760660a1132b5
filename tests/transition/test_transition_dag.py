"""The transition DAG: which operations, in which order, and what each waits for."""

from __future__ import annotations

import pytest

from nereus.transition.tasks import stage_rank
from tests.builders import make_emus, make_model, make_plan, thin_state
from tests.transition.scenarios import NOTHING, SHAPES, current_emus, of_stages, planned, target_plan

UNTIED = thin_state(make_model(tied=False))
WAYS = [pytest.param(True, id="fused"), pytest.param(False, id="unfused")]


@pytest.mark.parametrize("fuse", WAYS)
@pytest.mark.parametrize("source", SHAPES[::4])
def test_operations_come_after_all_that_they_wait_for(source: str, fuse: bool) -> None:
    for target in SHAPES:
        seen: set[str] = set()
        current = current_emus(source)
        for op in planned(NOTHING, current, target_plan(current, target), fuse=fuse).ops:
            assert set(op.after) <= seen
            seen.add(op.id)


def test_transition_without_changed_stages_is_empty() -> None:
    transition = of_stages({}, {})
    assert (transition.ops, transition.result, transition.num_bytes, transition.counts) == ((), (), 0, {})


def test_stage_that_keeps_its_plan_has_no_operations_and_its_own_units() -> None:
    current = {"actor_training": make_emus("tp2 dp2")}
    transition = of_stages(current, {"actor_training": make_plan("tp2 dp2")})
    assert (transition.ops, transition.result) == ((), current["actor_training"])


def test_operation_names_are_used_once() -> None:
    current = {s: make_emus("tp4", stage=s, devices=range(i, i + 4)) for s, i in (("a_training", 0), ("b_training", 4))}
    targets = {
        s: make_plan("tp2 dp2", stage=s, devices=[i, i + 2, i + 1, i + 3]) for s, i in (("a_training", 0), ("b_training", 4))
    }
    transition = of_stages(current, targets)
    assert len({op.id for op in transition.ops}) == len(transition.ops) == 2
    assert all(op.id.startswith("e1.") for op in transition.ops)


def test_stages_tie_in_the_order_generation_inference_training() -> None:
    names = ["critic_training", "reward_inference", "actor_generation", "actor_training", "other"]
    assert sorted(names, key=stage_rank) == [
        "actor_generation",
        "reward_inference",
        "actor_training",
        "critic_training",
        "other",
    ]


def test_ties_between_stages_are_broken_in_stage_order() -> None:
    stages = ["critic_training", "actor_generation", "reward_inference"]
    current = {stage: make_emus("tp1", stage=stage, devices=[i]) for i, stage in enumerate(stages)}
    targets = {stage: make_plan("dp2", stage=stage, devices=[i, 8 + i]) for i, stage in enumerate(stages)}
    ops = of_stages(current, targets).ops
    assert [op.stage for op in ops] == ["actor_generation", "reward_inference", "critic_training"]


def test_transition_result_has_the_units_of_all_changed_stages() -> None:
    current = {
        "a_training": make_emus("tp1", stage="a_training"),
        "b_training": make_emus("tp1", stage="b_training", devices=[1]),
    }
    targets = {
        "a_training": make_plan("dp2", stage="a_training", devices=[0, 2]),
        "b_training": make_plan("tp1", stage="b_training", devices=[3]),
    }
    assert {(emu.stage, emu.endpoints) for emu in of_stages(current, targets).result} == {
        ("a_training", ("d0.0",)),
        ("a_training", ("d2.0",)),
        ("b_training", ("d3.0",)),
    }


@pytest.mark.parametrize("fuse", WAYS)
def test_transition_counts_its_primitives(fuse: bool) -> None:
    """Fused or not, the DAG shows every primitive."""
    current = make_emus("tp2 dp2")
    transition = planned(NOTHING, current, target_plan(current, "tp1 pp2 dp4"), fuse=fuse)
    assert transition.counts == {"Split": 2, "Extend": 4, "Merge": 4}


# --- ZeRO-1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), [("dp2 zero1", "dp3 zero1"), ("dp2", "dp2 zero1"), ("tp2 dp2 zero1", "tp4")])
def test_change_of_shared_optimizer_state_is_one_movement_to_newborn_units(source: str, target: str) -> None:
    """No replica is complete, and each change of DP changes what every one of them keeps."""
    current = make_emus(source)
    transition = planned(UNTIED, current, target_plan(current, target))
    (op,) = transition.ops
    assert op.makes == transition.result
    assert not {emu.unit for emu in op.makes} & {emu.unit for emu in current}


def test_change_to_shared_optimizer_state_alone_is_named_a_reshard() -> None:
    """No primitive of the paper: layout, DP and devices stay."""
    transition = planned(UNTIED, make_emus("dp2"), make_plan("dp2 zero1"))
    assert [(op.id, op.primitives) for op in transition.ops] == [("e1.0.Reshard", ())]


def test_zero1_counts_the_primitives_that_lead_to_its_layout() -> None:
    transition = planned(UNTIED, make_emus("tp2 dp2 zero1"), make_plan("tp2 dp3 zero1"))
    assert transition.counts == {"Extend": 1}


def test_zero1_stage_that_keeps_its_plan_has_no_operations() -> None:
    """As when only the micro-batch changes."""
    current = make_emus("tp2 dp2 zero1")
    transition = planned(UNTIED, current, make_plan("tp2 dp2 zero1"))
    assert (transition.ops, transition.result) == ((), current)
