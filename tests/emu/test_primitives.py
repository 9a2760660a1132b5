"""The four primitives: what they make, where they are undefined, and that no sequence of them loses the last copy."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nereus.emu.primitives import Destroy, EmuCollection, Extend, Merge, Primitive, Split, apply
from nereus.emu.unit import Emu
from nereus.errors import PreconditionError
from nereus.layout.layout import Layout
from tests.builders import ENDPOINT_OF, UnitNames, endpoints_of, make_emu, make_emus, make_layout

degree = st.integers(1, 3)
factors = st.tuples(degree, degree, degree, degree).filter(lambda f: f[2] * f[3] > 1)
"""tp and pp of the smaller layout, and by how much each is multiplied."""


def whole_and_sub(case: tuple[int, int, int, int]) -> tuple[Emu, Layout]:
    tp, pp, by_tp, by_pp = case
    return make_emu(f"tp{tp * by_tp} pp{pp * by_pp}"), Layout(tp, pp)


# --- what they make ----------------------------------------------------------------------------------------------------


@given(factors)
def test_split_makes_as_many_units_as_the_factor(case: tuple[int, int, int, int]) -> None:
    source, sub = whole_and_sub(case)
    parts = Split.of(source, sub, UnitNames()).parts
    assert (len(parts), {part.layout for part in parts}) == (case[2] * case[3], {sub})


@given(factors)
def test_split_parts_share_the_endpoints_of_the_whole(case: tuple[int, int, int, int]) -> None:
    source, sub = whole_and_sub(case)
    parts = Split.of(source, sub, UnitNames()).parts
    assert sorted(e for part in parts for e in part.endpoints) == sorted(source.endpoints)


@given(factors)
def test_merge_is_the_inverse_of_split(case: tuple[int, int, int, int]) -> None:
    source, sub = whole_and_sub(case)
    parts = Split.of(source, sub, UnitNames()).parts
    assert Merge.of(parts, source.layout, UnitNames()).result.endpoints == source.endpoints


@given(factors)
def test_split_is_the_inverse_of_merge(case: tuple[int, int, int, int]) -> None:
    tp, pp, by_tp, by_pp = case
    parts = make_emus(f"tp{tp} pp{pp} dp{by_tp * by_pp}")
    merged = Merge.of(parts, Layout(tp * by_tp, pp * by_pp), UnitNames()).result
    split = Split.of(merged, Layout(tp, pp), UnitNames())
    assert [part.endpoints for part in split.parts] == [part.endpoints for part in parts]


@given(factors)
def test_split_leaves_each_old_shard_inside_the_new_one(case: tuple[int, int, int, int]) -> None:
    """On a grid of layers by rows: nothing that an endpoint already holds is outside of its new block."""
    (tp, _, by_tp, by_pp), (source, sub) = case, whole_and_sub(case)
    old = {e: (rank // (tp * by_tp), rank % (tp * by_tp)) for rank, e in enumerate(source.endpoints)}
    for part in Split.of(source, sub, UnitNames()).parts:
        for rank, endpoint in enumerate(part.endpoints):
            layer, row = old[endpoint]
            assert (layer // by_pp, row // by_tp) == (rank // tp, rank % tp)


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


@pytest.mark.parametrize("sub", ["tp3", "pp3", "tp8", "tp4 pp2", "tp4 pp4"])
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


# --- any sequence ------------------------------------------------------------------------------------------------------

POOL = tuple(ENDPOINT_OF[device] for device in range(16))
DIVISORS = {n: [d for d in range(1, n + 1) if n % d == 0] for n in range(1, 17)}


class AnySequence(RuleBasedStateMachine):
    """Applies primitives as they come, legal or not; a refusal must change nothing."""

    @initialize(tp=degree, pp=degree)
    def start(self, tp: int, pp: int) -> None:
        self.names = UnitNames()
        self.collection: EmuCollection = frozenset({make_emu(f"tp{tp} pp{pp}")})

    def _pick(self, data: st.DataObject) -> Emu:
        return data.draw(st.sampled_from(sorted(self.collection, key=lambda emu: emu.unit)))

    def _free(self) -> list[str]:
        return [e for e in POOL if not any(e in emu.endpoints for emu in self.collection)]

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        emu = self._pick(data)
        options = [Layout(t, p) for t, p in product(DIVISORS[emu.layout.tp], DIVISORS[emu.layout.pp])]
        sub = data.draw(st.sampled_from(options))
        if sub != emu.layout:
            self.collection = apply(self.collection, Split.of(emu, sub, self.names))

    @rule(data=st.data(), by_tp=st.integers(1, 3), by_pp=st.integers(1, 3))
    def merge(self, data: st.DataObject, by_tp: int, by_pp: int) -> None:
        first = self._pick(data)
        alike = sorted((emu for emu in self.collection if emu.layout == first.layout), key=lambda emu: emu.unit)
        parts = tuple(data.draw(st.permutations(alike))[: by_tp * by_pp])
        if len(parts) == by_tp * by_pp > 1:
            whole = Layout(first.layout.tp * by_tp, first.layout.pp * by_pp)
            self.collection = apply(self.collection, Merge.of(parts, whole, self.names))

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        emu = self._pick(data)
        if len(self._free()) >= emu.layout.size:
            endpoints = tuple(data.draw(st.permutations(self._free()))[: emu.layout.size])
            self.collection = apply(self.collection, Extend.of(emu, endpoints, self.names))

    @precondition(lambda self: len(self.collection) > 1)
    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        self.collection = apply(self.collection, Destroy(self._pick(data)))

    @precondition(lambda self: len(self.collection) == 1)
    @rule()
    def destroy_the_last(self) -> None:
        (emu,) = self.collection
        with pytest.raises(PreconditionError):
            apply(self.collection, Destroy(emu))

    @rule(data=st.data())
    def use_an_ended_unit(self, data: st.DataObject) -> None:
        emu = self._pick(data)
        if emu.layout.size > 1:
            split = Split.of(emu, Layout(), self.names)
            self.collection = apply(self.collection, split)
            with pytest.raises(PreconditionError):
                apply(self.collection, split)

    @invariant()
    def a_copy_is_left(self) -> None:
        assert self.collection

    @invariant()
    def endpoints_are_disjoint(self) -> None:
        used = [e for emu in self.collection for e in emu.endpoints]
        assert len(used) == len(set(used))

    @invariant()
    def names_are_used_once(self) -> None:
        assert len({emu.unit for emu in self.collection}) == len(self.collection)


AnySequence.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
TestAnySequence = AnySequence.TestCase
