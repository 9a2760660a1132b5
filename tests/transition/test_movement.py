"""Fused movements: no unit is held that is neither there before the transition nor after it, and no byte moves twice."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest

from nereus.emu.primitives import Destroy, Split
from nereus.emu.unit import Emu
from nereus.layout.catalog import Site, StateSpec, UnitId
from nereus.transition.feasibility import check_memory
from nereus.transition.local import LocalDag, local_dag
from nereus.transition.movement import Movement, fused, resharded, unfused
from tests.builders import ENDPOINT_OF, STAGE, make_emus, make_layout, make_model, make_plan, make_state, shape_texts
from tests.layout.bounds import lacking_bytes
from tests.layout.models import thin_trained_state
from tests.transition.scenarios import current_emus, planned, target_plan

SHAPES = [*shape_texts(8)[::2], *shape_texts(8, form="fsdp")[1::4], "tp2 fsdp2 dp2", "pp2 fsdp2 dp2"]
TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))
DENSE = make_state(make_model(tied=False, num_layers=8, num_heads=8, num_kv_heads=8).model_copy(update={"ffn_size": 16}))
EVEN = StateSpec(tuple(t for t in DENSE.tensors if t.layer is not None and t.axis is not None), 8)
"""Layers alone, every tensor shared out evenly over 1, 2, 4 and 8 ranks."""

BYTES = sum(4 * tensor.num_elements for tensor in EVEN.tensors)


def dag_of(source: str, target: str, seed: int = 0) -> tuple[tuple[Emu, ...], LocalDag]:
    """A local DAG on the current devices, or on any devices for a seed."""
    current = current_emus(source, seed)
    plan = target_plan(current, target)
    if seed:
        plan = make_plan(target, devices=Random(seed).sample(range(10), len(plan.devices)))
    return current, local_dag(current, plan, ENDPOINT_OF, birth_epoch=1)


@cache
def cases() -> tuple[tuple[tuple[Emu, ...], LocalDag], ...]:
    """Every third pair, on the devices that suit it and on any."""
    return tuple(dag_of(a, b, seed) for i, a in enumerate(SHAPES) for b in SHAPES[i % 3 :: 3] for seed in (0, i + 1))


def reads(movement: Movement) -> set[Site]:
    """Where a movement may read at most: what its primitives read, and what stands where its targets are."""
    anywhere = {Site(endpoint, emu.unit) for emu in movement.reads for endpoint in emu.endpoints}
    targets = {endpoint for emu in movement.makes for endpoint in emu.endpoints}
    return anywhere | {Site(e, emu.unit) for emu in movement.resident for e in emu.endpoints if e in targets}


def names(emus: tuple[Emu, ...]) -> set[UnitId]:
    return {emu.unit for emu in emus}


def in_order(movements: tuple[Movement, ...]) -> list[Movement]:
    """A topological order. Fails on a circle."""
    done, order = set[int](), list[Movement]()
    while len(done) < len(movements):
        ready = [index for index in range(len(movements)) if index not in done and movements[index].after <= done]
        assert ready, "the movements wait for each other in a circle"
        order += [movements[index] for index in ready]
        done |= set(ready)
    return order


# --- every pair --------------------------------------------------------------------------------------------------------


def test_fused_movements_make_only_units_that_stay() -> None:
    for current, dag in cases():
        made = [emu for movement in fused(dag, current, reads) for emu in movement.makes]
        assert Counter(made) == Counter(emu for emu in dag.result if emu not in current)


def test_fused_movements_read_only_units_that_were_there_or_stay() -> None:
    for current, dag in cases():
        for movement in fused(dag, current, reads):
            assert names(movement.reads) <= names(current) | names(dag.result)


def test_every_primitive_is_in_one_movement() -> None:
    for current, dag in cases():
        steps = sorted(repr(step.primitive) for step in dag.steps)
        for movements in (fused(dag, current, reads), unfused(dag), resharded(dag, current, dag.result)):
            assert sorted(repr(primitive) for m in movements for primitive in m.primitives) == steps


def test_movements_wait_in_no_circle_and_read_nothing_that_was_released() -> None:
    for current, dag in cases():
        for movements in (fused(dag, current, reads), unfused(dag)):
            gone, made = set[object](), names(current)
            for movement in in_order(movements):
                assert names(movement.reads) <= made
                assert not gone & {(e, emu.unit) for emu in movement.reads for e in emu.endpoints}
                gone |= set(movement.frees)
                made |= names(movement.makes)


def test_fused_movements_release_what_is_destroyed_of_units_that_were_there() -> None:
    """A part of a Split that is only destroyed was never held: its endpoints give up what they had of the whole."""
    for current, dag in cases():
        whole = {part: s.primitive.source for s in dag.steps if isinstance(s.primitive, Split) for part in s.primitive.parts}
        destroyed = [step.primitive.target for step in dag.steps if isinstance(step.primitive, Destroy)]
        expected = {(e, whole.get(emu, emu).unit) for emu in destroyed for e in emu.endpoints}
        assert {tuple(site) for movement in fused(dag, current, reads) for site in movement.frees} == expected


def test_unfused_movements_are_the_steps() -> None:
    for _, dag in cases():
        assert [(m.primitives, m.reads, m.makes, m.after) for m in unfused(dag)] == [
            ((s.primitive,), s.primitive.reads, s.primitive.makes, s.after) for s in dag.steps
        ]


# --- bytes and memory --------------------------------------------------------------------------------------------------


def test_fused_tp2_to_pp2_sends_half_of_what_the_unfused_sends() -> None:
    """Each of two ranks needs half of the layers and holds half of their rows; a Split brings it half of all rows."""
    sent = {fuse: planned(EVEN, make_emus("tp2"), make_plan("pp2"), fuse=fuse).num_bytes for fuse in (True, False)}
    assert sent == {True: BYTES // 2, False: BYTES}


@pytest.mark.parametrize("fuse", [True, False])
def test_transition_from_tp2_to_pp2_counts_split_and_merge(fuse: bool) -> None:
    assert planned(EVEN, make_emus("tp2"), make_plan("pp2"), fuse=fuse).counts == {"Split": 1, "Merge": 1}


def test_fused_tp2_to_pp2_is_one_operation() -> None:
    (op,) = planned(EVEN, make_emus("tp2"), make_plan("pp2")).ops
    assert (op.primitives, op.makes[0].layout) == (("Split", "Merge"), make_layout("pp2"))


def test_fused_tp2_to_pp2_holds_no_t_sub_copy() -> None:
    """Half before and half after, but for buffers of a byte each way; unfused a whole replica besides."""
    peaks = {}
    for fuse in (True, False):
        current = make_emus("tp2")
        transition = planned(EVEN, current, make_plan("pp2"), fuse=fuse, bucket_bytes=1)
        peaks[fuse] = max(check_memory(transition, current, {STAGE: EVEN}, 1e12).peak_bytes.values())
    assert peaks == {True: pytest.approx(BYTES, abs=2), False: pytest.approx(2 * BYTES, abs=2)}


@pytest.mark.parametrize("source", SHAPES)
def test_fused_transition_never_sends_more_than_the_unfused(source: str) -> None:
    for target in SHAPES:
        current = current_emus(source)
        sent = [planned(TRAINED, current, target_plan(current, target), fuse=fuse).num_bytes for fuse in (True, False)]
        assert sent[0] <= sent[1], target


@pytest.mark.parametrize("source", SHAPES[::2])
def test_each_fused_operation_sends_what_its_units_lack(source: str) -> None:
    """Not only in total: no operation does another's work."""
    for target in SHAPES:
        current = current_emus(source)
        for op in planned(TRAINED, current, target_plan(current, target)).ops:
            assert op.num_bytes == lacking_bytes(TRAINED, current, op.makes).total(), (target, op.id)


@pytest.mark.parametrize(("target", "rounds"), [("dp2", 1), ("dp3", 2), ("dp4", 2), ("dp5", 3), ("dp8", 3), ("dp16", 4)])
def test_newborn_replicas_copy_on_in_a_tree(target: str, rounds: int) -> None:
    """One replica feeds n in log2(n) rounds, since a device does one operation at a time."""
    transition, busy = planned(EVEN, make_emus("dp1"), make_plan(target)), dict[str, int]()
    done: dict[str, int] = {}
    for op in transition.ops:
        done[op.id] = 1 + max([*(busy.get(e, 0) for e in op.members), *(done[name] for name in op.after)])
        busy.update(dict.fromkeys(op.members, done[op.id]))
    assert max(done.values()) == rounds
    assert {op.num_bytes for op in transition.ops} == {BYTES}
