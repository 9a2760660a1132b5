"""Minimal moves against element counters: all that is missing, once, and nothing that is resident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings

from nereus.emu.unit import Emu
from nereus.errors import StoreError
from nereus.layout.catalog import Catalog, EndpointId, Family, StateSpec, UnitId
from nereus.layout.moves import Move, minimal_moves
from nereus.layout.tensors import CanonicalTensor, Kind, Place, TensorRef
from tests.builders import Mask, make_emu, make_emus, make_model, rank_masks, thin_state
from tests.layout.bounds import lacking_bytes, resident_masks
from tests.layout.cases import STATES, Case, at, cases, landed, sent

Held = dict[tuple[EndpointId, UnitId, TensorRef], Mask]


def held(state: StateSpec, emus: Iterable[Emu]) -> Held:
    return {(e, emu.unit, tensor.ref): mask for emu in emus for e, tensor, mask in rank_masks(state, emu) if mask.any()}


@settings(max_examples=80, deadline=None)
@given(cases())
def test_moves_fill_each_target_element_exactly_once(case: Case) -> None:
    filled = landed(case.moves)
    wanted = held(case.state, case.targets)
    assert filled.keys() == wanted.keys()
    for key, mask in wanted.items():
        np.testing.assert_array_equal(filled[key], mask)


@settings(max_examples=50, deadline=None)
@given(cases())
def test_moves_leave_from_where_the_elements_are(case: Case) -> None:
    have = held(case.state, case.sources)
    assert all(have[(*m.source, tensor.ref)][at(m.box)].all() for m in case.moves for tensor in m.tensors)


@settings(max_examples=80, deadline=None)
@given(cases())
def test_wire_bytes_are_what_each_endpoint_lacks(case: Case) -> None:
    received: Counter[EndpointId] = Counter()
    for move in sent(case.moves):
        received[move.target.endpoint] += move.num_bytes
    assert received == lacking_bytes(case.state, case.sources, case.targets)


@settings(max_examples=50, deadline=None)
@given(cases())
def test_moves_send_nothing_that_is_resident(case: Case) -> None:
    resident = resident_masks(case.state, case.sources)
    for move in sent(case.moves):
        for tensor in move.tensors:
            known = resident.get((move.target.endpoint, tensor.ref))
            assert known is None or not known[at(move.box)].any()


@settings(max_examples=30, deadline=None)
@given(cases())
def test_moves_are_the_same_each_time(case: Case) -> None:
    assert case.moves == minimal_moves(*case.catalogs)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_tensors_of_a_move_are_alike_and_named_once(case: Case) -> None:
    for move in case.moves:
        assert len({(tensor.shape, tensor.dtype) for tensor in move.tensors}) == 1
        assert len(set(move.tensors)) == len(move.tensors)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_moves_of_catalogs_in_families_are_those_of_single_tensors(case: Case) -> None:
    """What a family moves together is what each of its tensors would move alone."""
    sources, targets = (Catalog(tuple(Family((t,), held) for ts, held in c.families for t in ts)) for c in case.catalogs)

    def landing(moves: Iterable[Move]) -> Counter[object]:
        return Counter((m.target, t.ref, m.box, m.is_local) for m in moves for t in m.tensors)

    assert landing(minimal_moves(sources, targets)) == landing(case.moves)


def test_moves_to_where_everything_is_resident_are_all_local() -> None:
    case = Case(STATES["tied"], make_emus("tp2 pp2 dp2"), make_emus("tp2 pp2 dp2", epoch=1))
    assert all(move.is_local for move in case.moves)


# --- what has no source ------------------------------------------------------------------------------------------------


def test_element_without_a_source_is_refused_with_the_tensor_named() -> None:
    case = Case(STATES["untied"], make_emus("pp2"), make_emus("tp1", devices=[5]))
    sources, targets = case.catalogs
    with pytest.raises(StoreError, match=r"lm_head\.weight|model\.norm\.weight|model\.layers\.[345]"):
        minimal_moves(sources.where(lambda site: site.endpoint == "d0.0"), targets)


def test_tensor_without_any_holder_is_refused_by_name() -> None:
    sources, targets = Case(STATES["untied"], make_emus("tp1"), make_emus("tp1", devices=[5])).catalogs
    kept = Catalog(tuple(family for family in sources.families if family.tensors[0].name != "lm_head.weight"))
    with pytest.raises(StoreError, match=r"lm_head\.weight"):
        minimal_moves(kept, targets)


def test_moment_without_a_holder_is_named_with_its_kind() -> None:
    moment = CanonicalTensor("w", Kind.EXP_AVG, (4,), "float32", Place.FIRST)
    with pytest.raises(StoreError, match="w:exp_avg"):
        minimal_moves(Catalog((Family((moment,), ()),)), Catalog.of(StateSpec((moment,), 1), [make_emu("tp1")]))


def test_optimizer_state_of_a_lost_zero1_replica_is_refused() -> None:
    """Each replica keeps a part that no other has: parameters survive its loss, moments do not."""
    state = STATES["trained"]
    survivor = Catalog.of(state, make_emus("dp2 zero1")[:1])
    with pytest.raises(StoreError, match=r"exp_avg|master"):
        minimal_moves(survivor, Catalog.of(state, [make_emu("tp1", devices=[5])]))


# --- dtypes ------------------------------------------------------------------------------------------------------------


def test_target_dtype_travels_when_it_differs() -> None:
    wide = thin_state(make_model(tied=True))
    narrow = StateSpec(tuple(t if t.kind is Kind.SCALAR else t.as_kind(t.kind, "bfloat16") for t in wide.tensors), 6)
    moves = minimal_moves(Catalog.of(wide, [make_emu("tp1")]), Catalog.of(narrow, [make_emu("tp1", devices=[1])]))
    parameters = [move for move in moves if move.tensors[0].kind is Kind.PARAMETER]
    assert sum(move.num_bytes for move in parameters) == 2 * sum(
        t.num_elements for t in wide.tensors if t.kind is Kind.PARAMETER
    )
