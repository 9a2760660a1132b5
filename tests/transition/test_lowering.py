"""What each primitive is compiled to: which collectives, how many bytes, who takes part (paper, section 6.1)."""

from __future__ import annotations

from collections import Counter

import pytest

from nereus.emu.primitives import Destroy, Extend, Merge, Primitive, Split
from nereus.emu.unit import Emu
from nereus.layout.catalog import Site, StateSpec
from nereus.layout.moves import NodeOf
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.transition.collectives import AllGather, Pairwise
from nereus.transition.lowering import lower
from nereus.transition.movement import Movement
from nereus.transition.ops import BUCKET_BYTES, Op
from tests.builders import (
    DEVICE_OF,
    UnitNames,
    endpoints_of,
    fused_state,
    make_emu,
    make_emus,
    make_layout,
    make_model,
    make_state,
    thin_state,
)
from tests.layout.bounds import held_bytes, lacking_bytes

DIVISIBLE = make_model(tied=False, num_layers=8, num_heads=8, num_kv_heads=8, vocab=48)
"""Its layers, heads, vocabulary (and with 16 rows its MLP) can be shared out over 1, 2, 4 and 8 ranks alike."""
EVEN = make_state(DIVISIBLE.model_copy(update={"ffn_size": 16}))
CUT_ONLY = StateSpec(tuple(t for t in EVEN.tensors if t.axis is not None), EVEN.num_layers)
UNEVEN = thin_state(make_model(tied=True, num_heads=3, num_kv_heads=3))
FUSED = fused_state()


def movement_of(primitive: Primitive) -> Movement:
    """The movement of a primitive that is carried out alone."""
    frees = tuple(Site(e, emu.unit) for emu in primitive.ends for e in emu.endpoints)
    released = frees if isinstance(primitive, Destroy) else ()
    return Movement((primitive,), primitive.reads, (), primitive.makes, released)


def lowered(primitive: Primitive, state: StateSpec, node_of: NodeOf | None = None) -> Op:
    return lower(movement_of(primitive), state, "op", (), node_of or {}, BUCKET_BYTES)


def split_op(whole: str, sub: str, state: StateSpec) -> Op:
    return lowered(Split.of(make_emu(whole), make_layout(sub), UnitNames()), state)


def merge_op(sub: str, whole: str, state: StateSpec) -> Op:
    count = make_layout(whole).size // make_layout(sub).size
    return lowered(Merge.of(make_emus(f"{sub} dp{count}"), make_layout(whole), UnitNames()), state)


def extend_op(text: str, state: StateSpec) -> Op:
    source = make_emu(text)
    return lowered(Extend.of(source, endpoints_of(range(40, 40 + source.layout.size)), UnitNames()), state)


# --- Split -------------------------------------------------------------------------------------------------------------

SPLITS = [("tp2", "tp1"), ("tp4", "tp2"), ("tp8", "tp2"), ("pp2", "pp1"), ("pp4", "pp2"), ("pp8", "pp1")]
MIXED_SPLITS = [("tp2 pp2", "tp1"), ("tp4 pp2", "tp2"), ("tp4 pp4", "tp2 pp2"), ("tp2 pp8", "pp2")]


@pytest.mark.parametrize(("whole", "sub"), SPLITS)
def test_split_is_one_gather_per_position(whole: str, sub: str) -> None:
    op = split_op(whole, sub, EVEN)
    assert all(isinstance(exchange, AllGather) for exchange in op.exchanges)
    positions = {tuple(sorted(part.endpoints[rank] for part in op.makes)) for rank in range(make_layout(sub).size)}
    assert sorted(exchange.group.members for exchange in op.exchanges) == sorted(positions)


@pytest.mark.parametrize(("whole", "sub"), MIXED_SPLITS)
def test_split_of_both_axes_gathers_every_tensor_that_is_cut(whole: str, sub: str) -> None:
    op = split_op(whole, sub, CUT_ONLY)
    assert all(isinstance(exchange, AllGather) for exchange in op.exchanges)
    assert len(op.exchanges) == make_layout(sub).size


@pytest.mark.parametrize(("whole", "sub"), [*SPLITS, *MIXED_SPLITS])
def test_split_sends_each_gathered_shard_to_all_others(whole: str, sub: str) -> None:
    """(k - 1) x the bytes of the whole state, since k replicas come out of one."""
    factor = make_layout(whole).size // make_layout(sub).size
    op = split_op(whole, sub, CUT_ONLY)
    assert op.num_bytes == (factor - 1) * held_bytes(CUT_ONLY, [make_emu(whole)]).total()


@pytest.mark.parametrize(("whole", "sub"), [*SPLITS, *MIXED_SPLITS])
def test_split_contributes_each_shard_from_where_it_is(whole: str, sub: str) -> None:
    source = make_emu(whole)
    given: Counter[str] = Counter()
    for exchange in split_op(whole, sub, CUT_ONLY).exchanges:
        assert isinstance(exchange, AllGather)
        for member, parts in zip(exchange.group.members, exchange.parts, strict=True):
            given[member] += sum(part.num_bytes for part in parts)
            assert {part.unit for part in parts} == {source.unit}
    assert given == held_bytes(CUT_ONLY, [source])


@pytest.mark.parametrize("state", [EVEN, UNEVEN, FUSED], ids=["even", "uneven", "fused"])
@pytest.mark.parametrize(
    ("whole", "sub"), [("tp4 pp2", "tp2"), ("tp8", "tp1"), ("pp4", "pp2"), ("tp2 pp3", "tp1"), ("tp3", "tp1")]
)
def test_split_receives_exactly_what_each_endpoint_lacks(whole: str, sub: str, state: StateSpec) -> None:
    op = split_op(whole, sub, state)
    assert op.num_bytes == lacking_bytes(state, [make_emu(whole)], op.makes).total()


# --- Merge -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [EVEN, FUSED], ids=["even", "fused"])
@pytest.mark.parametrize(
    ("sub", "whole"),
    [("tp1", "tp2"), ("tp2", "tp4"), ("pp1", "pp2"), ("pp2", "pp4"), ("tp1", "tp4 pp2"), ("tp2 pp2", "tp4 pp4")],
)
def test_merge_of_aligned_layouts_sends_nothing(sub: str, whole: str, state: StateSpec) -> None:
    op = merge_op(sub, whole, state)
    assert (op.exchanges, op.num_bytes) == ((), 0)


@pytest.mark.parametrize("sub", ["tp2", "tp3", "pp2", "tp1"])
def test_merge_of_uneven_layouts_sends_only_what_is_missing(sub: str) -> None:
    names = {"tp2": "tp8", "tp3": "tp6", "pp2": "pp4", "tp1": "tp7"}
    op = merge_op(sub, names[sub], UNEVEN)
    parts = make_emus(f"{sub} dp{make_layout(names[sub]).size // make_layout(sub).size}")
    assert op.num_bytes == lacking_bytes(UNEVEN, parts, op.makes).total()


# --- Extend and Destroy ------------------------------------------------------------------------------------------------

EXTENDED = ["tp1", "tp2", "pp2", "tp2 pp2", "tp4", "tp4 pp2", "pp3"]


@pytest.mark.parametrize("state", [EVEN, UNEVEN, FUSED], ids=["even", "uneven", "fused"])
@pytest.mark.parametrize("text", EXTENDED)
def test_extend_sends_each_shard_once(text: str, state: StateSpec) -> None:
    assert extend_op(text, state).num_bytes == held_bytes(state, [make_emu(text)]).total()


def assert_rank_aligned(op: Op, source: Emu) -> None:
    """One communicator per rank pair at the same TP/PP position, each shard once to the corresponding rank."""
    pairs = sorted(tuple(sorted(pair)) for pair in zip(source.endpoints, op.makes[0].endpoints, strict=True))
    assert sorted(tuple(sorted(exchange.group.members)) for exchange in op.exchanges) == pairs
    for exchange in op.exchanges:
        assert isinstance(exchange, Pairwise)
        moved = Counter((tensor.ref, move.box) for move in exchange.moves for tensor in move.tensors)
        assert set(moved.values()) == {1}


@pytest.mark.parametrize("text", EXTENDED)
def test_extend_of_tensors_that_are_cut_has_one_pair_per_rank(text: str) -> None:
    assert_rank_aligned(extend_op(text, CUT_ONLY), make_emu(text))


@pytest.mark.parametrize("text", EXTENDED[1:])
def test_extend_of_a_whole_state_has_one_pair_per_rank(text: str) -> None:
    assert_rank_aligned(extend_op(text, UNEVEN), make_emu(text))


@pytest.mark.parametrize("text", EXTENDED)
def test_extend_pairs_have_two_members(text: str) -> None:
    assert {len(exchange.group.members) for exchange in extend_op(text, UNEVEN).exchanges} == {2}


def test_destroy_moves_nothing() -> None:
    _, second = make_emus("tp2 dp2")
    op = lowered(Destroy(second), EVEN)
    assert (op.copies, op.exchanges, op.makes, op.members) == ((), (), (), second.endpoints)
    assert op.frees == (Site("d2.0", second.unit), Site("d3.0", second.unit))
    assert op.is_release


# --- names, members, what an endpoint sees -----------------------------------------------------------------------------


@pytest.mark.parametrize("primitive", ["Split", "Merge", "Extend", "Destroy"])
def test_op_carries_its_primitive_stage_and_units(primitive: str) -> None:
    made: dict[str, Primitive] = {
        "Split": Split.of(make_emu("tp2"), make_layout("tp1"), UnitNames()),
        "Merge": Merge.of(make_emus("dp2"), make_layout("tp2"), UnitNames()),
        "Extend": Extend.of(make_emu("tp2"), endpoints_of([2, 3]), UnitNames()),
        "Destroy": Destroy(make_emu("tp2")),
    }
    op = lower(movement_of(made[primitive]), EVEN, "e1.0", ("e1.9",), {}, BUCKET_BYTES)
    assert (op.id, op.primitives, op.stage, op.after) == ("e1.0", (primitive,), "actor_training", ("e1.9",))
    assert op.makes == made[primitive].makes


@pytest.mark.parametrize("primitive", ["Split", "Merge", "Extend"])
def test_op_that_moves_leaves_its_inputs_until_the_commit(primitive: str) -> None:
    """Until the proof the old units stand, so that the transition can be taken back."""
    ops = {"Split": split_op("tp2", "tp1", EVEN), "Merge": merge_op("tp1", "tp2", EVEN), "Extend": extend_op("tp2", EVEN)}
    assert ops[primitive].frees == ()
    assert not ops[primitive].is_release
    assert not ops[primitive].is_repeatable


@pytest.mark.parametrize(
    "op", [split_op("tp4 pp2", "tp2", UNEVEN), merge_op("tp2", "tp8", UNEVEN), extend_op("tp2", UNEVEN)]
)
def test_move_across_endpoints_is_between_members_of_its_group(op: Op) -> None:
    for exchange in op.exchanges:
        assert set(exchange.group.members) <= set(op.members)
        if isinstance(exchange, Pairwise):
            assert {s.endpoint for m in exchange.moves for s in (m.source, m.target)} <= set(exchange.group.members)


@pytest.mark.parametrize(
    "op", [split_op("tp4 pp2", "tp2", UNEVEN), merge_op("tp2", "tp8", UNEVEN), extend_op("tp2", UNEVEN)]
)
def test_copies_stay_on_one_endpoint(op: Op) -> None:
    assert all(move.source.endpoint == move.target.endpoint for move in op.copies)


def test_gather_of_uneven_shards_takes_parts_of_different_size() -> None:
    tensor = CanonicalTensor("w", Kind.PARAMETER, (7, 2), "float32", Place.FIRST, axis=0, segments=(Segment(7),))
    (gather,) = split_op("tp2", "tp1", StateSpec((tensor,), 1)).exchanges
    assert isinstance(gather, AllGather)
    assert [[part.box.volume for part in parts] for parts in gather.parts] == [[6], [8]]
    assert gather.num_bytes == 7 * 2 * 4


def test_extend_reads_a_source_on_the_same_node_only_at_the_same_position() -> None:
    source = make_emu("tp2", devices=[0, 8])
    extend = Extend.of(source, endpoints_of([9, 1]), UnitNames())
    op = lowered(extend, CUT_ONLY, {endpoint: device // 8 for endpoint, device in DEVICE_OF.items()})
    assert [exchange.group.members for exchange in op.exchanges] == [("d0.0", "d9.0"), ("d1.0", "d8.0")]
