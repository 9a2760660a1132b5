"""Shards that change hands: which may, and that nothing of them is copied, sent or held twice (paper, section 6.1)."""

from __future__ import annotations

import pytest

from nereus.transition.ops import Op
from tests.builders import STAGE, make_emus, make_model, make_plan
from tests.layout.bounds import held_bytes
from tests.layout.cases import SHAPES
from tests.layout.models import thin_trained_state
from tests.transition.interpreter import cut_afresh
from tests.transition.scenarios import current_emus, planned, target_plan

STATE = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))


def handed(op: Op) -> set[tuple[object, ...]]:
    return {(move.source, move.target, tensor.ref) for move in op.handovers for tensor in move.tensors}


@pytest.mark.parametrize("source", SHAPES)
def test_what_both_units_hold_alike_changes_hands_and_nothing_else_does(source: str) -> None:
    """By brute force: the same elements of a tensor, on the same endpoint, in a unit that is made and in one that ends."""
    for target in SHAPES:
        current = current_emus(source)
        transition = planned(STATE, current, target_plan(current, target))
        staying = {emu.unit for emu in transition.result}
        before = cut_afresh(STATE, [emu for emu in current if emu.unit not in staying])
        for op in transition.ops:
            after = cut_afresh(STATE, op.makes)
            alike = {
                (old, new, ref)
                for new, shards in after.items()
                for old in before
                if old[0] == new[0]
                for ref, values in shards.items()
                if (values >= 0).any() and (values == before[old][ref]).all()
            }
            assert handed(op) == alike, (target, op.id)


def test_pipeline_stages_that_merge_copy_nothing() -> None:
    """(tp1, pp4) to (tp1, pp2) on devices of the first and third stage: what they have stays where it is."""
    current = make_emus("pp4")
    (op, *_) = planned(STATE, current, make_plan("pp2", devices=[0, 2])).ops
    assert op.copies == ()
    assert (
        sum(move.num_bytes for move in op.handovers)
        == held_bytes(STATE, current)["d0.0"] + held_bytes(STATE, current)["d2.0"]
    )


def test_shard_that_is_cut_otherwise_is_copied() -> None:
    """Half of a tensor is no shard of its own: the rest of the memory could not be given back."""
    (op,) = planned(STATE, make_emus("dp2"), make_plan("tp2", devices=[0, 1])).ops
    cut = {tensor.ref for tensor in STATE.tensors if tensor.axis is not None}
    assert cut.isdisjoint(ref for *_, ref in handed(op))
    assert cut == {tensor.ref for move in op.copies for tensor in move.tensors} - {ref for *_, ref in handed(op)}


def test_unit_that_stays_keeps_its_shards() -> None:
    """An Extend reads a unit that goes on: nothing of it changes hands."""
    (op,) = planned(STATE, make_emus("tp2"), make_plan("tp2 dp2")).ops
    assert op.handovers == ()


def test_unfused_primitives_hold_copies_of_their_own() -> None:
    transition = planned(STATE, make_emus("pp2"), make_plan("pp4", stage=STAGE), fuse=False)
    assert not any(op.handovers for op in transition.ops)
