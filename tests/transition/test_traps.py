"""What went wrong in others' resharding, one test or more for each: traps 1 to 8, 10 and 11 of the design's list.

Equality with the oracle throughout, never a look at the loss.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from nereus.emu.digest import BoxDigest, logical_digest
from nereus.emu.unit import COUNTERS, Emu, counter_tensors
from nereus.layout.catalog import Catalog, StateSpec
from nereus.layout.dense import EMBED
from nereus.layout.layout import Layout
from nereus.layout.moves import minimal_moves
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment, TensorRef
from nereus.transition.collectives import Pairwise
from nereus.transition.messages import messages
from nereus.transition.ops import BUCKET_BYTES
from tests.builders import (
    fused_state,
    global_values,
    layer_owner,
    make_emus,
    make_model,
    make_state,
    rank_masks,
    shape_texts,
    thin_state,
)
from tests.transition.interpreter import Interpreter
from tests.transition.scenarios import current_emus, planned, replay, target_plan, wrong_shards

FORMS = ("plain", "zero1", "fsdp")


def after(state: StateSpec, current: tuple[Emu, ...], target: str, bucket_bytes: int | None = None) -> Interpreter:
    """The shards after a transition, at once or in buckets, that leaves what the oracle cuts."""
    plan, stream = target_plan(current, target), bucket_bytes is not None
    transition = planned(state, current, plan, stream=stream, bucket_bytes=bucket_bytes or BUCKET_BYTES)
    run = replay(state, current, [*transition.moving, *transition.held])
    assert wrong_shards(state, run, transition.result) == []
    return run


def chain(state: StateSpec, *texts: str) -> tuple[Emu, ...]:
    """One job that takes these plans in turn; returns its last units."""
    current = current_emus(texts[0])
    for text in texts[1:]:
        transition = planned(state, current, target_plan(current, text))
        assert wrong_shards(state, replay(state, current, transition.ops), transition.result) == []
        current = make_emus(text, devices=range(sum(len(emu.endpoints) for emu in transition.result)))
    return current


# --- 1: past the first bucket, optimizer state was read at a wrong offset and zero-filled ------------------------------


@pytest.mark.parametrize(("source", "target"), [("tp2 pp2", "tp4"), ("dp2 zero1", "dp3 zero1"), ("fsdp4", "tp2 pp2")])
def test_trap_1_optimizer_state_is_whole_over_many_buckets(source: str, target: str) -> None:
    state = make_state(make_model(tied=True, num_heads=3, num_kv_heads=3), optimizer=True)
    current = current_emus(source)
    transition = planned(state, current, target_plan(current, target), stream=True, bucket_bytes=1)
    streams = [op.stream for op in transition.ops if op.stream]
    handed = {tensor.ref for op in transition.ops for move in op.handovers for tensor in move.tensors}
    assert max(len(set(bucket) - handed) for stream in streams for bucket in stream.buckets) == 1
    after(state, current, target, bucket_bytes=1)


def test_trap_1_tensor_is_whole_over_many_messages() -> None:
    state = thin_state(make_model(tied=True))
    (op,) = planned(state, make_emus("tp2"), target_plan(make_emus("tp2"), "pp2")).ops
    (exchange,) = op.exchanges
    assert isinstance(exchange, Pairwise)
    move = max(exchange.moves, key=lambda move: move.num_bytes)
    cut = messages([(move.source.unit, move.tensors[:1], move.box)], 32)
    rows = [row for message in cut for piece in message for row in range(piece.box.low[0], piece.box.high[0])]
    assert len(cut) > 8
    assert rows == list(range(move.box.low[0], move.box.high[0]))


# --- 2: shards that are all padding, or straddle padding, broke --------------------------------------------------------


@pytest.mark.parametrize("form", ["zero1", "fsdp"])
def test_trap_2_ranks_without_a_row_are_legal(form: str) -> None:
    """A vocabulary of three over eight replicas or fsdp ranks: most hold nothing of it, or of its moments."""
    state = make_state(make_model(tied=True, vocab=3), optimizer=True)
    emus = make_emus(in_form("dp8", form))
    assert any(not mask.any() for emu in emus for _, tensor, mask in rank_masks(state, emu) if tensor.shape == (3, 4))
    for source, target in pairwise(["tp2 dp4", "dp8", "tp2 pp2 dp2", "tp4 dp2", "dp5", "dp8", "dp1"]):
        after(state, current_emus(in_form(source, form)), in_form(target, form))


def in_form(text: str, form: str) -> str:
    return {"plain": text, "zero1": f"{text} zero1", "fsdp": text.replace("dp", "fsdp")}[form]


# --- 3: 2 -> 4 nodes worked, 2 -> 3 failed -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2), (2, 5), (5, 7), (7, 3), (6, 4), (1, 7)])
def test_trap_3_replicas_may_be_any_number(before: int, now: int, form: str) -> None:
    state = make_state(make_model(tied=False, vocab=53, num_heads=3, num_kv_heads=3), optimizer=True)
    after(state, current_emus(in_form(f"dp{before}", form)), in_form(f"dp{now}", form))


# --- 4: fused gate/up or q/k/v were re-cut as if plain -----------------------------------------------------------------


@pytest.mark.parametrize("num_kv_heads", [2, 3])
def test_trap_4_fused_tensors_are_re_cut_segment_by_segment(num_kv_heads: int) -> None:
    chain(fused_state(num_heads=12, num_kv_heads=num_kv_heads), "tp2 pp2", "tp4", "tp1 dp2", "tp3 pp2", "fsdp4", "tp8")


def test_trap_4_cut_as_if_plain_would_hold_other_rows() -> None:
    """The wrong cut has as many rows, so that only values tell: gate 0-4 and up 10-14 against rows 0-9."""
    gate_up = next(tensor for tensor in fused_state().tensors if tensor.name == "0.gate_up")
    ((_, _, mask), *_) = [found for found in rank_masks(fused_state(), make_emus("tp2")[0]) if found[1] == gate_up]
    rows = [row for row in range(20) if mask[row].any()]
    assert rows == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    boxes = gate_up.boxes(Layout(2), 0, 6)
    assert [row for box in boxes for row in range(box.low[0], box.high[0])] == rows


# --- 5: kv heads fewer than TP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
def test_trap_5_every_rank_has_whole_kv_heads_and_no_head_is_lost(num_kv_heads: int) -> None:
    state = thin_state(make_model(tied=False, num_heads=num_kv_heads * 8, num_kv_heads=num_kv_heads))
    kv = TensorRef("model.layers.0.self_attn.k_proj.weight", Kind.PARAMETER)
    values = global_values(state)[kv]
    for source in ("tp1", "tp2 pp2", "tp3"):
        run = after(state, current_emus(source), "tp8")
        held = [shards[kv] for (_, unit), shards in run.shards.items() if unit.birth_epoch == 1]
        heads = [{row // 2 for row in range(len(values)) if (shard[row] >= 0).any()} for shard in held]
        assert all(len(each) == 1 for each in heads)
        assert set.union(*heads) == set(range(num_kv_heads))
        assert all((shard >= 0).sum() == values[:2].size for shard in held)


# --- 6: the padded vocabulary was multiplied twice; it was not divisible by TP -----------------------------------------


@pytest.mark.parametrize("tp", range(1, 9))
@pytest.mark.parametrize("before", [1, 3, 8])
def test_trap_6_vocabulary_of_4999_moves_as_4999_rows(before: int, tp: int) -> None:
    table = CanonicalTensor(EMBED, Kind.PARAMETER, (4999, 1), "float32", Place.ENDS, axis=0, segments=(Segment(4999),))
    state = StateSpec((table,), 4)
    sources, targets = make_emus(f"tp{before}"), make_emus(f"tp{tp}", devices=range(10, 10 + tp))
    moves = minimal_moves(Catalog.of(state, sources), Catalog.of(state, targets))
    assert sorted(row for move in moves for row in range(move.box.low[0], move.box.high[0])) == list(range(4999))


# --- 7: tied embeddings when PP changes --------------------------------------------------------------------------------

TIED = make_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53), optimizer=True)


def test_trap_7_tied_embeddings_are_one_tensor_with_one_set_of_moments() -> None:
    kinds = [tensor.kind for tensor in TIED.tensors if tensor.shape == (53, 4)]
    assert sorted(kinds) == sorted([Kind.PARAMETER, Kind.EXP_AVG, Kind.EXP_AVG_SQ])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pp", [2, 3, 6])
def test_trap_7_both_ends_have_the_same_embeddings_and_moments_when_pp_changes(pp: int, form: str) -> None:
    run = after(TIED, current_emus(in_form("tp2 dp2", form)), f"pp{pp}")
    embedding = [tensor.ref for tensor in TIED.tensors if tensor.name == EMBED]
    born = {endpoint: shards for (endpoint, unit), shards in run.shards.items() if unit.birth_epoch == 1}
    ends = [shards for shards in born.values() if (shards[embedding[0]] >= 0).any()]
    assert len(ends) == 2
    for ref in embedding:
        np.testing.assert_array_equal(ends[0][ref], ends[1][ref])


@pytest.mark.parametrize("pp", [1, 2, 3])
def test_trap_7_tied_embeddings_are_counted_once(pp: int) -> None:
    (emu,) = make_emus(f"pp{pp}")
    held = [TIED.shards(emu.layout, rank).items() for rank in range(pp)]
    boxes = [BoxDigest(t.ref, box, (box.volume, 0)) for shards in held for t, found in shards for box in found]
    assert {size for size, _ in logical_digest(boxes, {t.ref: t.shape for t in TIED.tensors}).values()} == {
        tensor.num_elements for tensor in TIED.tensors
    }


# --- 8: per-rank random streams were treated as replicated -------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_trap_8_each_of_256_random_streams_goes_to_whoever_takes_its_coordinates(form: str) -> None:
    """A framework that keeps streams declares them as rows; the native loop derives them from the counters."""
    streams = CanonicalTensor("rng", Kind.MASTER, (256, 2), "int64", Place.FIRST, axis=0, segments=(Segment(256),))
    state = StateSpec((streams, *counter_tensors()), 4)
    for source, target in pairwise(["tp8", "tp2 dp3", "dp5", "tp4 pp2", "dp2"]):
        after(state, current_emus(in_form(source, form)), in_form(target, form))


@pytest.mark.parametrize("form", FORMS)
def test_trap_8_position_that_streams_derive_from_is_the_same_on_every_rank(form: str) -> None:
    state = make_state(make_model(tied=False))
    values = global_values(state)
    for source, target in pairwise(["tp2 dp2", "pp2 dp3", "tp4", "dp7"]):
        run = after(state, current_emus(in_form(source, form)), in_form(target, form))
        for (_, unit), shards in run.shards.items():
            if unit.birth_epoch == 1:
                assert all(shards[TensorRef(n, Kind.SCALAR)] == values[TensorRef(n, Kind.SCALAR)] for n in COUNTERS)


# --- 10: uneven PP dropped layers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [1, 2, 4, 7])
def test_trap_10_all_of_30_layers_are_there_after_any_change_of_pp(before: int) -> None:
    norms = tuple(CanonicalTensor(f"{i}.norm", Kind.PARAMETER, (2,), "float32", Place.LAYER, i) for i in range(30))
    state = StateSpec(norms, 30)
    for pp in (1, 3, 4, 5, 7, 8):
        run = after(state, current_emus(f"pp{before}"), f"pp{pp}")
        held = [
            sorted(int(ref.name.partition(".")[0]) for ref, values in shards.items() if (values >= 0).any())
            for (_, unit), shards in run.shards.items()
            if unit.birth_epoch == (0 if pp == before else 1)
        ]
        assert sorted(held) == [[layer for layer in range(30) if layer_owner(layer, 30, pp) == rank] for rank in range(pp)]


# --- 11: step and param-group scalars were lost on a change ------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_trap_11_steps_and_param_group_values_are_on_every_rank_after_every_change(form: str) -> None:
    """Each optimizer's own scalars are tensors like all others: a step of each parameter, values of two param groups."""
    weights = make_state(make_model(tied=False, num_layers=4)).tensors
    steps = tuple(CanonicalTensor(f"{t.name}.step", Kind.SCALAR, (), "float32", Place.EVERYWHERE) for t in weights)
    groups = CanonicalTensor("param_groups", Kind.SCALAR, (2, 5), "float64", Place.EVERYWHERE)
    state = StateSpec((*weights, *steps, groups), 4)
    for source, target in pairwise(shape_texts(6, 4, form)[::5]):
        run = after(state, current_emus(source), target)
        for (_, unit), shards in run.shards.items():
            if unit.birth_epoch == 1:
                assert all((shards[tensor.ref] >= 0).all() for tensor in (*steps, groups))
