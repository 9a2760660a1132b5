"""Minimal moves against element counters: all that is missing, once, and nothing that is resident."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nereus.emu.unit import Emu, catalog
from nereus.errors import StoreError
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, StateSpec, UnitId
from nereus.layout.moves import Move, minimal_moves
from nereus.layout.tensors import CanonicalTensor, Kind, TensorRef
from tests.builders import (
    DEVICE_OF,
    Mask,
    fused_state,
    make_emu,
    make_emus,
    make_model,
    rank_masks,
    shape_texts,
    thin_state,
)

Held = dict[tuple[EndpointId, UnitId, TensorRef], Mask]
STATES = {
    "tied": thin_state(make_model(tied=True, num_heads=3, num_kv_heads=3)),
    "untied": thin_state(make_model(tied=False)),
    "fused": fused_state(),
}
Case = tuple[StateSpec, tuple[Emu, ...], tuple[Emu, ...]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A model and two plans, each on any of ten devices in any order."""
    shapes = shape_texts(8)

    def emus(epoch: int) -> tuple[Emu, ...]:
        text = draw(st.sampled_from(shapes))
        size = len([e for emu in make_emus(text) for e in emu.endpoints])
        return make_emus(text, devices=draw(st.permutations(range(10)))[:size], epoch=epoch)

    return STATES[draw(st.sampled_from(sorted(STATES)))], emus(0), emus(1)


def held(state: StateSpec, emus: Iterable[Emu]) -> Held:
    return {(e, emu.unit, tensor.ref): mask for emu in emus for e, tensor, mask in rank_masks(state, emu) if mask.any()}


def at(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in zip(box.low, box.high, strict=True))


def moves_of(case: Case) -> tuple[Move, ...]:
    state, sources, targets = case
    return minimal_moves(catalog(state, sources), catalog(state, targets))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_moves_fill_each_target_element_exactly_once(case: Case) -> None:
    state, _, targets = case
    filled: dict[tuple[EndpointId, UnitId, TensorRef], NDArray[np.int64]] = {}
    for move in moves_of(case):
        key = (*move.target, move.tensor.ref)
        filled.setdefault(key, np.zeros(move.tensor.shape, dtype=np.int64))[at(move.box)] += 1
    wanted = held(state, targets)
    assert filled.keys() == wanted.keys()
    for key, mask in wanted.items():
        np.testing.assert_array_equal(filled[key], mask)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_moves_leave_from_where_the_elements_are(case: Case) -> None:
    state, sources, _ = case
    have = held(state, sources)
    assert all(have[(*move.source, move.tensor.ref)][at(move.box)].all() for move in moves_of(case))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_wire_bytes_are_what_each_endpoint_lacks(case: Case) -> None:
    state, sources, targets = case
    resident: dict[tuple[EndpointId, TensorRef], Mask] = {}
    for (endpoint, _, ref), mask in held(state, sources).items():
        resident[endpoint, ref] = resident.get((endpoint, ref), np.zeros_like(mask)) | mask
    width = {tensor.ref: 8 if tensor.dtype == "int64" else 4 for tensor in state.tensors}
    lacking: Counter[EndpointId] = Counter()
    for (endpoint, _, ref), mask in held(state, targets).items():
        lacking[endpoint] += int((mask & ~resident.get((endpoint, ref), np.zeros_like(mask))).sum()) * width[ref]
    sent: Counter[EndpointId] = Counter()
    for move in moves_of(case):
        if move.source.endpoint != move.target.endpoint:
            sent[move.target.endpoint] += move.num_bytes
    assert +sent == +lacking


@settings(max_examples=20, deadline=None)
@given(cases())
def test_moves_are_the_same_each_time(case: Case) -> None:
    assert moves_of(case) == moves_of(case)


def test_moves_to_where_everything_is_resident_are_all_local() -> None:
    state, emus = STATES["tied"], make_emus("tp2 pp2 dp2")
    assert all(
        move.is_local for move in minimal_moves(catalog(state, emus), catalog(state, make_emus("tp2 pp2 dp2", epoch=1)))
    )


def test_element_without_a_source_is_refused_with_the_tensor_named() -> None:
    state, sources = STATES["untied"], catalog(STATES["untied"], [make_emu("pp2")])
    survivors = sources.at(["d0.0"])
    with pytest.raises(StoreError, match=r"lm_head\.weight|model\.norm\.weight|model\.layers\.[345]"):
        minimal_moves(survivors, catalog(state, [make_emu("tp1", devices=[5])]))


def test_tensor_without_any_holder_is_refused_by_name() -> None:
    state = STATES["untied"]
    whole = catalog(state, [make_emu("tp1")])
    lost = Catalog({tensor: held for tensor, held in whole.holdings.items() if tensor.name != "lm_head.weight"})
    with pytest.raises(StoreError, match=r"lm_head\.weight"):
        minimal_moves(lost, catalog(state, [make_emu("tp1", devices=[5])]))


def test_moment_without_a_holder_is_named_with_its_kind() -> None:
    moment = CanonicalTensor("w", Kind.EXP_AVG, (4,), "float32", thin_state(make_model(tied=True)).tensors[0].place)
    state = StateSpec((moment,), 1)
    with pytest.raises(StoreError, match="w:exp_avg"):
        minimal_moves(Catalog({moment: ()}), catalog(state, [make_emu("tp1")]))


def test_replica_on_the_same_node_is_read_first() -> None:
    state = STATES["tied"]
    sources, targets = make_emus("tp2 dp2", devices=[0, 1, 8, 9]), make_emus("tp2 pp2", devices=[12, 13, 14, 15], epoch=1)
    moves = minimal_moves(
        catalog(state, sources), catalog(state, targets), lambda a, b: DEVICE_OF[a] // 8 == DEVICE_OF[b] // 8
    )
    assert {DEVICE_OF[move.source.endpoint] for move in moves} == {8, 9}


def test_resident_shard_is_read_before_one_on_the_same_node() -> None:
    state = STATES["untied"]
    moves = minimal_moves(catalog(state, make_emus("dp2", devices=[0, 1])), catalog(state, [make_emu("tp1", epoch=1)]))
    assert {move.source.endpoint for move in moves} == {"d0.0"}


def test_load_of_four_replicas_is_spread() -> None:
    state = STATES["untied"]
    moves = minimal_moves(catalog(state, make_emus("dp4")), catalog(state, [make_emu("tp1", devices=[9], epoch=1)]))
    load: Counter[EndpointId] = Counter()
    for move in moves:
        load[move.source.endpoint] += move.num_bytes
    largest = max(move.num_bytes for move in moves)
    assert len(load) == 4
    assert max(load.values()) <= sum(load.values()) / 4 + largest


def test_load_of_four_replicas_is_even_over_four_readers() -> None:
    state = STATES["untied"]
    moves = minimal_moves(
        catalog(state, make_emus("dp4")), catalog(state, make_emus("dp4", devices=[9, 10, 11, 12], epoch=1))
    )
    load: Counter[EndpointId] = Counter()
    for move in moves:
        load[move.source.endpoint] += move.num_bytes
    assert max(load.values()) <= sum(load.values()) / 4 + max(move.num_bytes for move in moves)


def test_target_dtype_travels_when_it_differs() -> None:
    shape_of = make_model(tied=True)
    wide, narrow = thin_state(shape_of), thin_state(shape_of)
    narrow = StateSpec(tuple(t if t.kind is Kind.SCALAR else t.as_kind(t.kind, "bfloat16") for t in narrow.tensors), 6)
    moves = minimal_moves(catalog(wide, [make_emu("tp1")]), catalog(narrow, [make_emu("tp1", devices=[1])]))
    parameters = [move for move in moves if move.tensor.kind is Kind.PARAMETER]
    assert sum(move.num_bytes for move in parameters) == 2 * sum(
        t.num_elements for t in wide.tensors if t.kind is Kind.PARAMETER
    )


def test_catalog_names_every_holder_of_every_tensor() -> None:
    state, emus = STATES["tied"], make_emus("tp2 pp2 dp2")
    found: dict[tuple[EndpointId, UnitId, TensorRef], int] = defaultdict(int)
    for tensor, holders in catalog(state, emus).holdings.items():
        for site, box in holders:
            found[(*site, tensor.ref)] += box.volume
    assert found == {key: mask.sum() for key, mask in held(state, emus).items()}


def test_catalog_at_some_endpoints_has_only_theirs() -> None:
    state, emus = STATES["tied"], make_emus("tp2 pp2 dp2")
    part = catalog(state, emus).at(["d1.0", "d6.0"])
    assert {site.endpoint for holders in part.holdings.values() for site, _ in holders} == {"d1.0", "d6.0"}
