"""The four primitives: what they make, and where they are undefined."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.emu.primitives import Destroy, EmuCollection, Extend, Merge, Primitive, Split, apply
from nereus.emu.unit import Emu
from nereus.errors import PreconditionError
from nereus.layout.layout import Layout
from tests.builders import NUM_DEVICES, UnitNames, endpoints_of, make_emu, make_emus, make_layout

degree, small = st.integers(1, 3), st.integers(1, 2)
Factors = tuple[tuple[int, int, int], tuple[int, int, int]]
factors = st.tuples(st.tuples(degree, degree, small), st.tuples(degree, degree, small)).filter(
    lambda f: prod(f[1]) > 1 and prod(f[0]) * prod(f[1]) <= NUM_DEVICES
)
"""tp, pp and fsdp of the smaller layout, and by how much each is multiplied."""


def whole_and_sub(case: Factors) -> tuple[Emu, Layout]:
    tp, pp, fsdp = (degree * factor for degree, factor in zip(*case, strict=True))
    return make_emu(f"tp{tp} pp{pp} fsdp{fsdp}"), Layout(*case[0])


# --- what they make ----------------------------------------------------------------------------------------------------


@given(factors)
def test_split_makes_as_many_units_as_the_factor(case: Factors) -> None:
    source, sub = whole_and_sub(case)
    parts = Split.of(source, sub, UnitNames()).parts
    assert (len(parts), {part.layout for part in parts}) == (prod(case[1]), {sub})


@given(factors)
def test_split_parts_share_the_endpoints_of_the_whole(case: Factors) -> None:
    source, sub = whole_and_sub(case)
    parts = Split.of(source, sub, UnitNames()).parts
    assert sorted(e for part in parts for e in part.endpoints) == sorted(source.endpoints)


@given(factors)
def test_merge_is_the_inverse_of_split(case: Factors) -> None:
    source, sub = whole_and_sub(case)
    parts = Split.of(source, sub, UnitNames()).parts
    assert Merge.of(parts, source.layout, UnitNames()).result.endpoints == source.endpoints


@given(factors)
def test_split_is_the_inverse_of_merge(case: Factors) -> None:
    source, sub = whole_and_sub(case)
    parts = make_emus(f"tp{sub.tp} pp{sub.pp} fsdp{sub.fsdp} dp{prod(case[1])}")
    merged = Merge.of(parts, source.layout, UnitNames()).result
    split = Split.of(merged, sub, UnitNames())
    assert [part.endpoints for part in split.parts] == [part.endpoints for part in parts]


@given(factors)
def test_split_leaves_each_old_shard_inside_the_new_one(case: Factors) -> None:
    """On a grid of layers by shares by rows: nothing that an endpoint already holds is outside of its new block."""
    (tp, _, fsdp), (by_tp, by_pp, by_fsdp) = case
    source, sub = whole_and_sub(case)
    old = {e: np.unravel_index(rank, (1000, fsdp * by_fsdp, tp * by_tp)) for rank, e in enumerate(source.endpoints)}
    for part in Split.of(source, sub, UnitNames()).parts:
        for rank, endpoint in enumerate(part.endpoints):
            layer, share, row = old[endpoint]
            assert (layer // by_pp, share // by_fsdp, row // by_tp) == np.unravel_index(rank, (1000, fsdp, tp))


@pytest.mark.parametrize(
    ("whole", "sub", "aligned"),
    [
        ("tp4 pp2", "tp2", True),
        ("fsdp4", "fsdp2", True),
        ("pp2 fsdp2", "fsdp2", True),
        ("tp2 fsdp2", "tp2", True),
        ("tp2 fsdp2", "fsdp2", False),
    ],
)
def test_split_gathers_by_position_unless_tp_changes_under_fsdp(whole: str, sub: str, aligned: bool) -> None:
    """Rows 0-3 of 8 are ranks 0 and 2 of (tp2, fsdp2): a half of each TP rank's half, not a half of the whole."""
    assert Split.of(make_emu(whole), make_layout(sub), UnitNames()).is_aligned == aligned


@pytest.mark.parametrize("whole", ["tp2", "pp2"])
def test_split_of_figure_5a_gives_two_units_of_one_gpu(whole: str) -> None:
    parts = Split.of(make_emu(whole), Layout(), UnitNames()).parts
    assert [part.endpoints for part in parts] == [("d0.0",), ("d1.0",)]


@pytest.mark.parametrize(("sub", "whole"), [("tp1", "tp2"), ("pp2", "pp4")])
def test_merge_of_figure_5b_gives_one_unit_on_all_gpus(sub: str, whole: str) -> None:
    parts = make_emus(f"{sub} dp2")
    result = Merge.of(parts, make_layout(whole), UnitNames()).result
    assert result.layout == make_layout(whole)
    assert set(result.endpoints) == {e for part in parts for e in part.endpoints}


def test_extend_of_figure_5c_raises_dp_from_two_to_four() -> None:
    emus, names = make_emus("tp2 dp2"), UnitNames()
    collection: EmuCollection = frozenset(emus)
    for emu, devices in zip(emus, ([4, 5], [6, 7]), strict=True):
        collection = apply(collection, Extend.of(emu, endpoints_of(devices), names))
    assert sorted(e.endpoints for e in collection) == [endpoints_of(pair) for pair in ([0, 1], [2, 3], [4, 5], [6, 7])]


def test_destroy_of_figure_5d_lowers_dp_from_two_to_one() -> None:
    first, second = make_emus("tp2 dp2")
    assert apply(frozenset({first, second}), Destroy(second)) == frozenset({first})


def test_extend_keeps_stage_and_layout_and_pairs_ranks_in_order() -> None:
    source = make_emu("tp2 pp2")
    replica = Extend.of(source, endpoints_of([7, 4, 6, 5]), UnitNames()).replica
    assert (replica.stage, replica.layout, replica.endpoints) == (source.stage, source.layout, endpoints_of([7, 4, 6, 5]))


def test_extend_leaves_its_source() -> None:
    source = make_emu("tp2")
    extend = Extend.of(source, endpoints_of([2, 3]), UnitNames())
    assert apply(frozenset({source}), extend) == frozenset({source, extend.replica})


def test_primitives_name_what_they_read_make_and_end() -> None:
    whole, names = make_emu("tp2"), UnitNames()
    split = Split.of(whole, Layout(), names)
    merge = Merge.of(split.parts, Layout(2), names)
    extend = Extend.of(whole, endpoints_of([2, 3]), names)
    found = [(p.reads, p.makes, p.ends) for p in (split, merge, extend, Destroy(whole))]
    assert found == [
        ((whole,), split.parts, (whole,)),
        (split.parts, (merge.result,), split.parts),
        ((whole,), (extend.replica,), ()),
        ((), (), (whole,)),
    ]


# --- where they are undefined ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sub", ["tp3", "pp3", "tp8", "tp4 pp2", "tp4 pp4", "tp2 fsdp2"])
def test_split_into_a_layout_that_does_not_divide_is_refused(sub: str) -> None:
    with pytest.raises(PreconditionError, match="Split"):
        Split.of(make_emu("tp4 pp2"), make_layout(sub), UnitNames())


def test_merge_of_different_stages_is_refused() -> None:
    other = make_emu("tp1", stage="critic_training", devices=[1])
    with pytest.raises(PreconditionError, match="one model-stage"):
        Merge.of((make_emu("tp1"), other), Layout(2), UnitNames())


def test_merge_of_different_layouts_is_refused() -> None:
    with pytest.raises(PreconditionError, match="one layout"):
        Merge.of((make_emu("tp2"), make_emu("pp2", devices=[2, 3])), Layout(2, 2), UnitNames())


def test_merge_on_overlapping_endpoints_is_refused() -> None:
    with pytest.raises(PreconditionError, match="disjoint"):
        Merge.of((make_emu("tp2"), make_emu("tp2", devices=[1, 2])), Layout(4), UnitNames())


@pytest.mark.parametrize("whole", ["tp3", "tp4", "tp1", "pp3", "tp2 pp2"])
def test_merge_of_the_wrong_number_of_units_is_refused(whole: str) -> None:
    with pytest.raises(PreconditionError, match="do not make"):
        Merge.of(make_emus("dp2"), make_layout(whole), UnitNames())


def test_merge_of_nothing_is_refused() -> None:
    with pytest.raises(PreconditionError, match="Merge"):
        Merge.of((), Layout(2), UnitNames())


def test_extend_onto_its_own_endpoints_is_refused() -> None:
    with pytest.raises(PreconditionError, match="Extend"):
        Extend.of(make_emu("tp2"), endpoints_of([1, 2]), UnitNames())


def test_extend_onto_endpoints_of_another_replica_keeps_both() -> None:
    """Whether both fit is the feasibility check's question: the other replica may be on its way out."""
    first, second = make_emus("tp2 dp2")
    extend = Extend.of(first, endpoints_of([3, 4]), UnitNames())
    assert apply(frozenset({first, second}), extend) == {first, second, extend.replica}


def test_destroy_of_the_last_copy_is_refused() -> None:
    only = make_emu("tp2")
    with pytest.raises(PreconditionError, match="last copy"):
        apply(frozenset({only}), Destroy(only))


def test_replica_of_another_stage_is_no_copy() -> None:
    only, other = make_emu("tp2"), make_emu("tp2", stage="critic_training", devices=[2, 3])
    with pytest.raises(PreconditionError, match="last copy"):
        apply(frozenset({only, other}), Destroy(only))


def primitives_over_absent_units() -> list[Primitive]:
    whole, parts, names = make_emu("tp2"), make_emus("dp2"), UnitNames()
    return [
        Split.of(whole, Layout(), names),
        Merge.of(parts, Layout(2), names),
        Extend.of(whole, endpoints_of([2, 3]), names),
        Destroy(whole),
    ]


@pytest.mark.parametrize("primitive", primitives_over_absent_units(), ids=lambda p: type(p).__name__)
def test_primitive_over_an_absent_unit_is_refused(primitive: Primitive) -> None:
    with pytest.raises(PreconditionError, match="not in the collection"):
        apply(frozenset({make_emu("tp1", devices=[9])}), primitive)
