"""Catalogs: who holds what, in families of tensors that are cut alike."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings

from nereus.errors import TensorRuleError
from nereus.layout.catalog import Catalog, EndpointId, Site, StateSpec, UnitId
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment, TensorRef
from tests.builders import make_emu, make_emus, make_model, make_state, rank_masks
from tests.layout.bounds import held_bytes
from tests.layout.cases import SHAPES, STATES, Case, cases
from tests.layout.models import thin_trained_state

STATE = STATES["tied"]


def volumes(catalog: Catalog) -> dict[tuple[EndpointId, UnitId, TensorRef], int]:
    """Elements that each site holds of each tensor."""
    found: dict[tuple[EndpointId, UnitId, TensorRef], int] = defaultdict(int)
    for tensor, site, box in catalog.holdings():
        found[(*site, tensor.ref)] += box.volume
    return dict(found)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_catalog_names_every_holder_of_every_tensor(case: Case) -> None:
    held = {
        (endpoint, emu.unit, tensor.ref): int(mask.sum())
        for emu in case.sources
        for endpoint, tensor, mask in rank_masks(case.state, emu)
        if mask.any()
    }
    assert volumes(Catalog.of(case.state, case.sources)) == held


@settings(max_examples=40, deadline=None)
@given(cases())
def test_catalog_has_each_tensor_in_one_family(case: Case) -> None:
    named = [tensor.ref for family in Catalog.of(case.state, case.sources).families for tensor in family.tensors]
    assert sorted(named) == sorted(tensor.ref for tensor in case.state.tensors)


def test_catalog_of_no_units_has_every_tensor_and_no_holder() -> None:
    catalog = Catalog.of(STATE, ())
    assert {tensor for family in catalog.families for tensor in family.tensors} == set(STATE.tensors)
    assert list(catalog.holdings()) == []


def test_layers_of_one_pipeline_rank_are_a_family_with_their_moments() -> None:
    """Planning then costs as much as a model has kinds of tensors, not as it has layers."""
    state = make_state(make_model(tied=False, num_layers=6), optimizer=True)
    more = make_state(make_model(tied=False, num_layers=24), optimizer=True)
    few, many = (Catalog.of(spec, make_emus("tp2 pp2")) for spec in (state, more))
    assert len(few.families) == len(many.families)


def test_family_counts_the_bytes_of_all_its_tensors() -> None:
    emus = make_emus("tp2 pp2 dp2")
    families = Catalog.of(STATE, emus).families
    total = sum(family.item_bytes * box.volume for family in families for _, box in family.holders)
    assert total == held_bytes(STATE, emus).total()


def test_catalog_of_some_sites_has_only_theirs() -> None:
    catalog = Catalog.of(STATE, make_emus("tp2 pp2 dp2"))
    part = catalog.where(lambda site: site.endpoint in ("d1.0", "d6.0"))
    assert {site.endpoint for _, site, _ in part.holdings()} == {"d1.0", "d6.0"}
    assert volumes(part) == {key: volume for key, volume in volumes(catalog).items() if key[0] in ("d1.0", "d6.0")}


def test_trained_catalog_leaves_out_frozen_tensors() -> None:
    frozen = StateSpec(tuple(replace(t, frozen=t.layer == 1) for t in STATE.tensors), STATE.num_layers)
    tensors = {tensor for tensor, _, _ in Catalog.of(frozen, make_emus("pp2")).trained().holdings()}
    assert {tensor.layer for tensor in tensors} == {None, 0, 2, 3, 4, 5}


def test_frozen_and_trained_tensors_of_one_shape_are_apart() -> None:
    """Else a weight sync would take both or neither."""
    state = make_state(make_model(tied=False))
    mixed = StateSpec(tuple(replace(t, frozen=t.layer == 1) for t in state.tensors), state.num_layers)
    for family in Catalog.of(mixed, make_emus("tp2")).families:
        assert len({tensor.frozen for tensor in family.tensors}) == 1


def test_landed_catalog_has_what_the_stores_report() -> None:
    """A stream that was interrupted: some tensors of a unit are there, some are not."""
    emu = make_emu("tp2")
    held = {
        Site(endpoint, emu.unit): dict(list(STATE.shards(emu.layout, rank).items())[: 3 + rank])
        for rank, endpoint in enumerate(emu.endpoints)
    }
    found = {(t, site, box) for t, site, box in Catalog.landed(held).holdings()}
    assert found == {(t, site, box) for site, shards in held.items() for t, boxes in shards.items() for box in boxes}


@pytest.mark.parametrize("text", SHAPES[::7])
def test_bytes_of_tensors_add_up_to_those_of_the_shard(text: str) -> None:
    state = thin_trained_state(make_model(tied=True))
    for emu in make_emus(text):
        for rank in range(emu.layout.size):
            each = [state.tensor_bytes(tensor.ref, emu.layout, rank, emu.optimizer) for tensor in state.tensors]
            assert sum(each) == state.shard_bytes(emu.layout, rank, optimizer=emu.optimizer)


@pytest.mark.parametrize("text", SHAPES[::5])
def test_shard_bytes_count_held_elements_by_their_width(text: str) -> None:
    state = thin_trained_state(make_model(tied=True, vocab=53))
    for emu in make_emus(text):
        held = held_bytes(state, [emu])
        found = [state.shard_bytes(emu.layout, rank, optimizer=emu.optimizer) for rank in range(emu.layout.size)]
        assert found == [held[endpoint] for endpoint in emu.endpoints]


def test_shard_bytes_of_one_kind_leave_out_the_others() -> None:
    state = make_state(make_model(tied=False), optimizer=True)
    parts = [state.shard_bytes(make_emu("tp2").layout, 0, kind) for kind in Kind]
    assert sum(parts) == state.shard_bytes(make_emu("tp2").layout, 0)
    assert parts[list(Kind).index(Kind.EXP_AVG)] == parts[list(Kind).index(Kind.PARAMETER)] > 0


def test_state_with_one_name_twice_is_refused() -> None:
    def cut(rows: int) -> CanonicalTensor:
        return CanonicalTensor("w", Kind.PARAMETER, (rows, 2), "float32", Place.FIRST, axis=0, segments=(Segment(rows),))

    with pytest.raises(TensorRuleError, match="tensor w"):
        StateSpec((cut(8), cut(4)), num_layers=1)


def test_tensor_that_a_state_has_is_found_by_its_reference() -> None:
    moment = thin_trained_state(make_model(tied=True)).tensors[3]
    assert thin_trained_state(make_model(tied=True)).tensor(moment.ref) == moment
    with pytest.raises(KeyError, match="stray"):
        STATE.tensor(TensorRef("stray", Kind.PARAMETER))
