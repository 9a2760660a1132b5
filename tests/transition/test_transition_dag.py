"""The whole transition: order, edges, views of endpoints, and its effect on shards, simulated in numpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from random import Random

import numpy as np
import pytest

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.layout.moves import Move
from nereus.transition.dag import Exclusive, stage_rank, transition_dag
from nereus.transition.ops import TRANSFER, AllGather, GroupKey, Op, Pairwise, Program, Transition, program_for
from tests.builders import (
    DEVICE_OF,
    ENDPOINT_OF,
    fused_state,
    make_emus,
    make_model,
    make_plan,
    make_state,
    thin_state,
)
from tests.transition.interpreter import Interpreter, cut_afresh
from tests.transition.scenarios import SHAPES, current_emus, target_plan

TIED = thin_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=51))
UNTIED = thin_state(make_model(tied=False, num_heads=4, num_kv_heads=2, vocab=51))
STATES = {"tied": TIED, "untied": UNTIED}


def transition_of(current: tuple[Emu, ...], plan: StagePlan, state: StateSpec) -> Transition:
    stage = plan.stage
    return transition_dag({stage: current}, {stage: plan}, {stage: state}, ENDPOINT_OF, 1, lambda a, b: True)


def always(first: str, second: str) -> bool:
    """All model-stages run concurrently, so none shares a device with another."""
    return True


def of_stages(
    current: Mapping[str, tuple[Emu, ...]],
    targets: Mapping[str, StagePlan],
    exclusive: Exclusive = lambda a, b: False,
) -> Transition:
    states = dict.fromkeys(targets, StateSpec((), 8))

    def same_node(a: str, b: str) -> bool:
        return DEVICE_OF[a] // 8 == DEVICE_OF[b] // 8

    return transition_dag(current, targets, states, ENDPOINT_OF, 1, same_node, exclusive)


def shuffled(ops: tuple[Op, ...], random: Random) -> list[Op]:
    """The operations in a random order that `after` admits."""
    waiting, order = {op.id: op for op in ops}, list[Op]()
    while waiting:
        op = waiting[random.choice(sorted(name for name, op in waiting.items() if not set(op.after) & waiting.keys()))]
        order.append(waiting.pop(op.id))
    return order


def assert_carries_over(state: StateSpec, current: tuple[Emu, ...], transition: Transition, ops: list[Op]) -> None:
    """Each final shard is, element by element, the global state cut afresh for the target."""
    run = Interpreter(state, current)
    for op in ops:
        run.run(op)
    for site, expected in cut_afresh(state, transition.result).items():
        for ref, values in expected.items():
            assert np.array_equal(run.shards[site][ref], values), (site, ref)


# --- state is carried over, for every pair -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(STATES))
@pytest.mark.parametrize("source", SHAPES)
def test_transition_leaves_the_global_state_cut_afresh(source: str, name: str) -> None:
    for seed, target in enumerate(SHAPES):
        current = current_emus(source, seed)
        transition = transition_of(current, target_plan(current, target), STATES[name])
        assert_carries_over(STATES[name], current, transition, list(transition.ops))


@pytest.mark.parametrize("source", ["tp4 pp2 dp1", "tp2 pp2 dp2", "tp1 pp6 dp1", "tp3 pp2 dp1", "tp8 pp1 dp1"])
def test_transition_leaves_the_same_state_in_any_order_of_its_edges(source: str) -> None:
    for seed, target in enumerate(SHAPES[::3]):
        current = current_emus(source, seed)
        transition = transition_of(current, target_plan(current, target), TIED)
        assert_carries_over(TIED, current, transition, shuffled(transition.ops, Random(seed)))


@pytest.mark.parametrize("target", ["tp4 dp2", "tp2 pp3", "pp6", "tp3 dp2", "tp8", "dp5"])
def test_transition_to_new_devices_leaves_the_global_state_cut_afresh(target: str) -> None:
    current = make_emus("tp2 pp2 dp2")
    size = make_plan(target).layout.size * make_plan(target).dp
    transition = transition_of(current, make_plan(target, devices=range(20, 20 + size)), UNTIED)
    assert_carries_over(UNTIED, current, transition, list(transition.ops))


@pytest.mark.parametrize("target", ["tp4 pp2", "tp2 pp4", "pp6", "tp8", "tp1 dp8", "tp2 dp3"])
def test_transition_carries_the_moments_and_counters_of_a_trained_model(target: str) -> None:
    state = make_state(make_model(tied=True, num_heads=3, num_kv_heads=3), optimizer=True)
    current = current_emus("tp2 pp2 dp2", seed=3)
    transition = transition_of(current, target_plan(current, target), state)
    assert_carries_over(state, current, transition, list(transition.ops))


@pytest.mark.parametrize("num_kv_heads", [2, 3])
@pytest.mark.parametrize("source", ["tp1 pp2 dp2", "tp2 pp2 dp2", "tp3 pp2 dp1", "tp8 pp1 dp1", "tp4 pp2 dp1"])
def test_transition_re_cuts_fused_tensors_segment_by_segment(source: str, num_kv_heads: int) -> None:
    state = fused_state(num_heads=12, num_kv_heads=num_kv_heads)
    for seed, target in enumerate(SHAPES[num_kv_heads % 2 :: 2]):
        current = current_emus(source, seed)
        transition = transition_of(current, target_plan(current, target), state)
        assert_carries_over(state, current, transition, list(transition.ops))


def test_round_trip_over_every_small_plan_loses_nothing() -> None:
    """Trap 14's geometry: one job that takes every plan in turn; each transition starts from what the last one left."""
    current = current_emus("tp1 pp1 dp1")
    for epoch, text in enumerate(Random(4).sample(SHAPES, len(SHAPES)), start=1):
        plan = target_plan(current, text)
        transition = transition_dag(
            {plan.stage: current}, {plan.stage: plan}, {plan.stage: TIED}, ENDPOINT_OF, epoch, lambda a, b: True
        )
        assert_carries_over(TIED, current, transition, list(transition.ops))
        current = transition.result


# --- order and edges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SHAPES[::4])
def test_operations_come_after_all_that_they_wait_for(source: str) -> None:
    for target in SHAPES:
        seen: set[str] = set()
        current = current_emus(source)
        for op in transition_of(current, target_plan(current, target), StateSpec((), 6)).ops:
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


def test_ready_release_goes_before_a_ready_acquisition() -> None:
    current = {
        "actor_generation": make_emus("tp1", stage="actor_generation", devices=[0]),
        "critic_training": make_emus("dp2", stage="critic_training", devices=[1, 2]),
    }
    targets = {
        "actor_generation": make_plan("dp2", stage="actor_generation", devices=[0, 2]),
        "critic_training": make_plan("dp1", stage="critic_training", devices=[1]),
    }
    assert [op.primitive for op in of_stages(current, targets).ops] == ["Destroy", "Extend"]


def test_release_of_a_stage_goes_before_its_own_acquisition_of_the_same_devices() -> None:
    current = make_emus("tp2 dp2")
    transition = transition_of(current, make_plan("tp2 dp2", devices=[0, 1, 2, 4]), UNTIED)
    assert [op.primitive for op in transition.ops] == ["Destroy", "Extend"]


def test_critic_of_figure_1b_waits_for_the_actor_to_release_gpu_10() -> None:
    """Destroy of the actor_training unit on GPU 10, then Extend of critic_training onto it, by an edge."""
    current = {
        "actor_training": make_emus("dp2", stage="actor_training", devices=[9, 10]),
        "critic_training": make_emus("tp1", stage="critic_training", devices=[11]),
    }
    targets = {
        "actor_training": make_plan("dp1", stage="actor_training", devices=[9]),
        "critic_training": make_plan("dp2", stage="critic_training", devices=[11, 10]),
    }
    ops = {op.primitive: op for op in of_stages(current, targets, exclusive=always).ops}
    assert ops["Destroy"].id in ops["Extend"].after


def test_generation_that_acquires_comes_after_the_destroy_that_a_split_makes_possible() -> None:
    """Figure 6 in small: reward (tp1, pp4) -> (tp1, pp2) gives up two devices, the actor extends onto them."""
    current = {
        "actor_generation": make_emus("tp2", stage="actor_generation", devices=[0, 1]),
        "reward_inference": make_emus("pp4", stage="reward_inference", devices=[4, 5, 6, 7]),
    }
    targets = {
        "actor_generation": make_plan("tp2 dp2", stage="actor_generation", devices=[0, 1, 5, 7]),
        "reward_inference": make_plan("pp2", stage="reward_inference", devices=[4, 6]),
    }
    assert [op.primitive for op in of_stages(current, targets, exclusive=always).ops] == ["Split", "Destroy", "Extend"]


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


def test_transition_counts_its_primitives() -> None:
    current = make_emus("tp2 dp2")
    transition = transition_of(current, target_plan(current, "tp1 pp2 dp4"), StateSpec((), 6))
    assert transition.counts == {"Split": 2, "Extend": 4, "Merge": 4}


# --- what each endpoint installs ---------------------------------------------------------------------------------------

VIEWED = [
    ("tp2 pp2 dp2", "tp4 pp2 dp1"),
    ("tp4 pp2 dp1", "tp1 pp2 dp3"),
    ("tp2 pp1 dp2", "tp2 pp1 dp4"),
    ("tp3 pp2 dp1", "tp2 pp3 dp1"),
]


def programs(source: str, target: str) -> tuple[Transition, dict[str, Program]]:
    current = current_emus(source, seed=1)
    transition = transition_of(current, target_plan(current, target), TIED)
    endpoints = {endpoint for op in transition.ops for endpoint in op.members}
    compute = [GroupKey.of(emu.endpoints, "compute") for emu in transition.result]
    states = {"actor_training": TIED, "critic_training": UNTIED}
    return transition, {
        endpoint: program_for(endpoint, 1, transition.ops, compute, states) for endpoint in sorted(endpoints)
    }


def wire_moves(op: Op) -> Counter[Move]:
    return Counter(move for x in op.exchanges if isinstance(x, Pairwise) for move in x.moves)


@pytest.mark.parametrize(("source", "target"), VIEWED)
def test_views_of_all_endpoints_hold_every_copy_once(source: str, target: str) -> None:
    transition, views = programs(source, target)
    seen = Counter(move for program in views.values() for op in program.ops for move in op.copies)
    assert seen == Counter(move for op in transition.ops for move in op.copies)


@pytest.mark.parametrize(("source", "target"), VIEWED)
def test_views_of_both_ends_hold_every_pairwise_move(source: str, target: str) -> None:
    transition, views = programs(source, target)
    expected: Counter[tuple[str, Move]] = Counter()
    for op in transition.ops:
        for move, count in wire_moves(op).items():
            expected[move.source.endpoint, move] += count
            expected[move.target.endpoint, move] += count
    seen = Counter((e, move) for e, program in views.items() for op in program.ops for move in wire_moves(op).elements())
    assert seen == expected


@pytest.mark.parametrize(("source", "target"), VIEWED)
def test_every_member_of_a_collective_sees_it_and_no_one_else(source: str, target: str) -> None:
    """Trap 16: all members enter, or none."""
    transition, views = programs(source, target)
    for op in transition.ops:
        for index, group in enumerate(x.group for x in op.exchanges):
            for endpoint, program in views.items():
                seen = [mine for mine in program.ops if mine.id == op.id]
                entered = [x.group for mine in seen for x in mine.exchanges].count(group)
                total = [x.group for x in op.exchanges].count(group)
                assert entered == (total if endpoint in group.members else 0), (op.id, index, endpoint)


@pytest.mark.parametrize(("source", "target"), VIEWED)
def test_gathers_are_seen_whole(source: str, target: str) -> None:
    transition, views = programs(source, target)
    gathers = {x for op in transition.ops for x in op.exchanges if isinstance(x, AllGather)}
    assert {x for p in views.values() for op in p.ops for x in op.exchanges if isinstance(x, AllGather)} == gathers


@pytest.mark.parametrize(("source", "target"), VIEWED)
def test_endpoints_submit_what_they_share_in_one_order(source: str, target: str) -> None:
    """Otherwise two operations that share two ranks can deadlock."""
    _, views = programs(source, target)
    for a, b in combinations(views.values(), 2):
        shared = {op.id for op in a.ops} & {op.id for op in b.ops}
        assert [op.id for op in a.ops if op.id in shared] == [op.id for op in b.ops if op.id in shared]


@pytest.mark.parametrize(("source", "target"), VIEWED)
def test_endpoints_make_the_communicators_that_they_share_in_one_order(source: str, target: str) -> None:
    _, views = programs(source, target)
    for a, b in combinations(views.values(), 2):
        shared = set(a.groups) & set(b.groups)
        assert [g for g in a.groups if g in shared] == [g for g in b.groups if g in shared]


@pytest.mark.parametrize(("source", "target"), VIEWED)
def test_program_has_every_communicator_of_its_endpoint_and_no_other(source: str, target: str) -> None:
    transition, views = programs(source, target)
    for endpoint, program in views.items():
        used = {x.group for op in transition.ops for x in op.exchanges if endpoint in x.group.members}
        assert {group for group in program.groups if group.lane == TRANSFER} == used
        computing = {group for group in program.groups if group.lane != TRANSFER}
        assert computing == {GroupKey.of(e.endpoints, "compute") for e in transition.result if endpoint in e.endpoints}


@pytest.mark.parametrize(("source", "target"), VIEWED)
def test_view_names_the_units_that_its_endpoint_opens_and_ends(source: str, target: str) -> None:
    transition, views = programs(source, target)
    for op in transition.ops:
        for endpoint, program in views.items():
            mine = [view for view in program.ops if view.id == op.id]
            assert [e for view in mine for e in view.makes] == [e for e in op.makes if endpoint in e.endpoints]
            assert [e for view in mine for e in view.ends] == [e for e in op.ends if endpoint in e.endpoints]


def test_program_carries_the_state_of_the_stages_that_it_opens_units_of() -> None:
    _, views = programs("tp2 pp2 dp2", "tp4 pp2 dp1")
    assert {tuple(program.states) for program in views.values()} == {("actor_training",)}
