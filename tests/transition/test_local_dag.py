"""Local DAGs: any order that the edges admit is legal and ends in the target, for every pair of small plans."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.emu.primitives import Destroy, EmuCollection, Extend, Merge, Split, apply
from nereus.emu.unit import Emu
from nereus.transition.arrange import arrange
from nereus.transition.local import LocalDag, local_dag
from tests.builders import (
    DEVICE_OF,
    ENDPOINT_OF,
    ONE_NODE,
    degrees,
    devices_of,
    endpoints_of,
    make_emus,
    make_layout,
    make_plan,
    shape_texts,
)
from tests.transition.scenarios import (
    SHAPES,
    any_topological_order,
    counts,
    current_emus,
    dag_between,
    target_plan,
    written,
)


def end_of(current: tuple[Emu, ...], dag: LocalDag, order: list[int]) -> EmuCollection:
    collection: EmuCollection = frozenset(current)
    for index in order:
        collection = apply(collection, dag.steps[index].primitive)
    return collection


# --- every pair --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SHAPES)
def test_any_order_of_the_steps_is_legal_and_ends_in_the_target(source: str) -> None:
    for seed, target in enumerate(SHAPES):
        current = current_emus(source, seed)
        plan = target_plan(current, target)
        dag = local_dag(current, plan, ENDPOINT_OF, birth_epoch=1)
        expected = [endpoints_of(group) for group in plan.groups]
        for order_seed in range(3):
            end = end_of(current, dag, any_topological_order(dag, Random(order_seed)))
            assert end == frozenset(dag.result), target
        assert [emu.endpoints for emu in dag.result] == expected, target
        assert {emu.layout for emu in dag.result} == {plan.layout}, target


@pytest.mark.parametrize("source", SHAPES)
def test_steps_wait_only_for_earlier_ones(source: str) -> None:
    for target in SHAPES:
        dag = dag_between(current_emus(source, 5), target)
        assert all(max(step.after, default=-1) < index for index, step in enumerate(dag.steps)), target


@pytest.mark.parametrize("source", SHAPES)
def test_default_order_is_split_destroy_extend_merge(source: str) -> None:
    rank = {Split: 0, Destroy: 1, Extend: 2, Merge: 3}
    for target in SHAPES:
        verbs = [rank[type(step.primitive)] for step in dag_between(current_emus(source), target).steps]
        assert verbs == sorted(verbs), target


@pytest.mark.parametrize("source", SHAPES)
def test_number_of_primitives_is_what_the_layouts_ask_for(source: str) -> None:
    """Every unit of T_sub stays if its devices do, so the counts follow from the degrees alone (paper, section 6)."""
    for target in SHAPES:
        old, new = make_layout(source), make_layout(target)
        old_dp, new_dp, sub = degrees(source)["dp"], degrees(target)["dp"], old.common(new)
        have, want = old_dp * old.size // sub.size, new_dp * new.size // sub.size
        expected = Counter(
            Split=old_dp * (sub != old), Destroy=max(0, have - want), Extend=max(0, want - have), Merge=new_dp * (sub != new)
        )
        assert counts(dag_between(current_emus(source, 3), target)) == +expected, target


@pytest.mark.parametrize("text", SHAPES)
def test_plan_that_does_not_change_takes_no_steps(text: str) -> None:
    current = current_emus(text, seed=7)
    dag = dag_between(current, text)
    assert (dag.steps, set(dag.result)) == ([], set(current))


def test_replica_that_stays_is_not_rebuilt() -> None:
    current = make_emus("tp2 dp2")
    assert set(current) <= set(dag_between(current, "tp2 dp3").result)


@pytest.mark.parametrize("source", SHAPES)
def test_units_that_a_transition_makes_have_names_of_their_own(source: str) -> None:
    for target in SHAPES:
        current = current_emus(source)
        made = [emu.unit for step in dag_between(current, target).steps for emu in step.primitive.makes]
        assert len({*made, *(emu.unit for emu in current)}) == len(made) + len(current)


@pytest.mark.parametrize("source", SHAPES)
def test_transition_is_the_same_each_time(source: str) -> None:
    for target in SHAPES[::5]:
        assert dag_between(current_emus(source, 2), target) == dag_between(current_emus(source, 2), target)


SHARED = [*shape_texts(8, form="fsdp")[1::3], "tp2 fsdp2 dp2", "pp2 fsdp2 dp2", "fsdp3 dp2", "fsdp2 dp4", "tp2 pp2 fsdp2"]
"""Layouts with an fsdp axis, which T_sub cuts as it does the others."""


@pytest.mark.parametrize("source", SHARED)
def test_fsdp_axis_is_split_and_merged_as_the_others(source: str) -> None:
    for seed, target in enumerate(SHARED):
        current = current_emus(source, seed)
        dag = dag_between(current, target)
        assert end_of(current, dag, any_topological_order(dag, Random(seed))) == frozenset(dag.result), target
        sub = make_layout(source).common(make_layout(target))
        parts = {part.layout for s in dag.steps if isinstance(s.primitive, Split) for part in s.primitive.parts}
        assert parts <= {sub}, target


# --- the last copy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SHAPES)
def test_move_to_new_devices_destroys_the_last_copy_after_the_extends_that_read_it(source: str) -> None:
    for target in SHAPES:
        current = current_emus(source)
        size = make_layout(target).size * degrees(target)["dp"]
        dag = dag_between(current, target, devices=list(range(20, 20 + size)))
        for order_seed in range(2):
            order = any_topological_order(dag, Random(order_seed))
            assert end_of(current, dag, order) == frozenset(dag.result), target
        destroyed = {step.primitive.target for step in dag.steps if isinstance(step.primitive, Destroy)}
        assert destroyed == units_before_extend(current, dag), target


def units_before_extend(current: tuple[Emu, ...], dag: LocalDag) -> set[Emu]:
    parts = {part for step in dag.steps if isinstance(step.primitive, Split) for part in step.primitive.parts}
    return parts or set(current)


def test_sole_unit_that_moves_is_extended_then_destroyed() -> None:
    dag = dag_between(make_emus("tp2"), "tp2", devices=[2, 3])
    assert written(dag) == [("Extend", [(2, 3)]), ("Destroy", [(0, 1)])]
    assert dag.steps[1].after == {0}


def test_sole_unit_that_moves_and_grows_is_destroyed_after_every_reader() -> None:
    dag = dag_between(make_emus("tp1"), "tp1 dp2", devices=[1, 2])
    assert written(dag) == [("Extend", [(1,)]), ("Extend", [(2,)]), ("Destroy", [(0,)])]
    assert dag.steps[2].after == {0, 1}


def test_extends_of_several_replicas_read_all_of_them() -> None:
    dag = dag_between(make_emus("dp4"), "dp8")
    assert len({step.primitive.reads for step in dag.steps}) == 4


def test_extend_reads_the_replica_on_the_same_node() -> None:
    current = make_emus("tp2 dp2", devices=[0, 1, 8, 9])
    plan = make_plan("tp2 dp3", devices=[0, 1, 8, 9, 10, 11])
    dag = local_dag(current, plan, ENDPOINT_OF, 1, {endpoint: device // 8 for endpoint, device in DEVICE_OF.items()})
    assert [devices_of(step.primitive.reads[0]) for step in dag.steps] == [(8, 9)]


# --- where T_sub alone is too coarse -----------------------------------------------------------------------------------


def test_unit_that_moves_by_one_device_goes_through_smaller_units() -> None:
    """No tp2 replica is disjoint from (1, 2), so none could be extended onto it; units of one device can."""
    dag = dag_between(make_emus("tp2"), "tp2", devices=[1, 2])
    assert written(dag) == [
        ("Split", [(1,), (0,)]),
        ("Destroy", [(0,)]),
        ("Extend", [(2,)]),
        ("Merge", [(1, 2)]),
    ]


def test_units_of_both_nodes_shrink_onto_one_node() -> None:
    """Two (tp2, pp2) units, each half on either node, become one on the first: both are split further."""
    current = make_emus("tp2 pp2 dp2", devices=[0, 1, 4, 5, 2, 3, 6, 7])
    dag = dag_between(current, "tp2 pp2", devices=[0, 1, 2, 3])
    assert [verb for verb, _ in written(dag)] == ["Split", "Split", "Destroy", "Destroy", "Merge"]
    assert end_of(current, dag, any_topological_order(dag, Random(0))) == frozenset(dag.result)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.permutations(range(12)))
def test_every_target_is_reached_on_any_devices(source: str, target: str, order: list[int]) -> None:
    """Compositions of the primitives cover every transition of the plan space (paper, section 5.2)."""
    current, size = current_emus(source), make_layout(target).size * degrees(target)["dp"]
    plan = arrange(current, make_plan(target, devices=order[:size]), DEVICE_OF, ONE_NODE)
    dag = local_dag(current, plan, ENDPOINT_OF, birth_epoch=1)
    assert end_of(current, dag, any_topological_order(dag, Random(1))) == frozenset(dag.result)


def test_slots_that_overlap_different_replicas_are_each_read_from_the_other() -> None:
    current = make_emus("tp2 dp2")
    dag = dag_between(current, "tp2 dp2", devices=[0, 4, 2, 5])
    assert end_of(current, dag, any_topological_order(dag, Random(0))) == frozenset(dag.result)


def test_slot_that_overlaps_the_only_replica_is_read_from_a_newborn_one() -> None:
    current = make_emus("tp2")
    dag = dag_between(current, "tp2 dp2", devices=[1, 2, 3, 4])
    assert end_of(current, dag, any_topological_order(dag, Random(0))) == frozenset(dag.result)


@pytest.mark.parametrize(
    ("source", "target"), [("tp8", "tp4"), ("pp4", "pp2"), ("tp2 pp4", "tp2 pp2"), ("tp4 pp2", "tp2 pp2")]
)
def test_unit_that_loses_the_second_half_of_its_devices_shrinks_onto_the_first(source: str, target: str) -> None:
    """Every transition of the plan space is covered by compositions of the primitives (paper, section 5.2)."""
    current, size = make_emus(source), make_layout(target).size
    plan = arrange(current, make_plan(target, devices=range(size)), DEVICE_OF, ONE_NODE)
    local_dag(current, plan, ENDPOINT_OF, birth_epoch=1)
