"""Which replica an element comes from: what is here, then what is near, then whoever has sent least; and relays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nereus.emu.unit import Emu
from nereus.layout.catalog import Catalog, EndpointId, StateSpec
from nereus.layout.moves import Move, minimal_moves
from nereus.layout.tensors import TensorRef
from tests.builders import DEVICE_OF, make_emu, make_emus, rank_masks
from tests.layout.bounds import lacking_bytes, resident_masks, width
from tests.layout.cases import NUM_DEVICES, STATES, Case, at, cases, landed, sent

NODES = {endpoint: device // 8 for endpoint, device in DEVICE_OF.items()}
placements = st.lists(st.integers(0, 2), min_size=NUM_DEVICES, max_size=NUM_DEVICES)
"""The node of each device."""


def planned(
    state: StateSpec, sources: Iterable[Emu], targets: Iterable[Emu], node_of: dict[EndpointId, int] | None = None
) -> tuple[Move, ...]:
    return minimal_moves(Catalog.of(state, sources), Catalog.of(state, targets), node_of)


def load_of(moves: Iterable[Move]) -> Counter[EndpointId]:
    """Bytes that each endpoint sends."""
    load: Counter[EndpointId] = Counter()
    for move in moves:
        load[move.source.endpoint] += move.num_bytes
    return load


# --- which replica -----------------------------------------------------------------------------------------------------


def test_replica_on_the_same_node_is_read_first() -> None:
    sources, targets = make_emus("tp2 dp2", devices=[0, 1, 8, 9]), make_emus("tp2 pp2", devices=[12, 13, 14, 15], epoch=1)
    assert set(load_of(planned(STATES["tied"], sources, targets, NODES))) == {"d8.0", "d9.0"}


def test_resident_shard_is_read_before_one_on_the_same_node() -> None:
    moves = planned(STATES["untied"], make_emus("dp2", devices=[0, 1]), [make_emu("tp1", epoch=1)])
    assert set(load_of(moves)) == {"d0.0"}


def test_load_of_four_replicas_is_spread() -> None:
    moves = planned(STATES["untied"], make_emus("dp4"), [make_emu("tp1", devices=[9], epoch=1)])
    load = load_of(moves)
    assert len(load) == 4
    assert max(load.values()) <= sum(load.values()) / 4 + max(move.num_bytes for move in moves)


def test_load_of_four_replicas_is_even_over_four_readers() -> None:
    moves = planned(STATES["untied"], make_emus("dp4"), make_emus("dp4", devices=[9, 10, 11, 12], epoch=1))
    load = load_of(moves)
    assert max(load.values()) <= sum(load.values()) / 4 + max(move.num_bytes for move in moves)


def test_endpoints_without_a_node_count_as_being_on_one() -> None:
    """A job that knows of no nodes plans as if there were one."""
    sources, targets = make_emus("tp2 dp2"), make_emus("pp4", devices=[2, 3, 4, 5], epoch=1)
    alike = dict.fromkeys(DEVICE_OF, 7)
    assert planned(STATES["tied"], sources, targets) == planned(STATES["tied"], sources, targets, alike)


@settings(max_examples=40, deadline=None)
@given(cases(), placements)
def test_nodes_do_not_change_what_each_endpoint_receives(case: Case, placement: list[int]) -> None:
    node_of = {f"d{device}.0": node for device, node in enumerate(placement)}
    received: Counter[EndpointId] = Counter()
    for move in sent(minimal_moves(*case.catalogs, node_of)):
        received[move.target.endpoint] += move.num_bytes
    assert received == lacking_bytes(case.state, case.sources, case.targets)


@settings(max_examples=40, deadline=None)
@given(cases(), placements)
def test_element_that_a_node_has_never_comes_from_another(case: Case, placement: list[int]) -> None:
    node_of = {f"d{device}.0": node for device, node in enumerate(placement)}
    on_node = resident_masks(case.state, case.sources, node_of.__getitem__)
    for move in minimal_moves(*case.catalogs, node_of):
        node = node_of[move.target.endpoint]
        if node_of[move.source.endpoint] != node:
            known = [on_node.get((node, tensor.ref)) for tensor in move.tensors]
            assert not any(mask is not None and mask[at(move.box)].any() for mask in known)


# --- relays ------------------------------------------------------------------------------------------------------------


def crossing_bytes(case: Case, node_of: dict[EndpointId, int]) -> int:
    """The fewest bytes over the slow links: what each node needs and has nowhere, once."""
    have = resident_masks(case.state, case.sources, node_of.__getitem__)
    want = resident_masks(case.state, case.targets, node_of.__getitem__)
    widths = {tensor.ref: width(tensor) for tensor in case.state.tensors}
    return sum(
        int((mask & ~have[node, ref] if (node, ref) in have else mask).sum()) * widths[ref]
        for (node, ref), mask in want.items()
    )


def relayed(case: Case, placement: list[int]) -> tuple[dict[EndpointId, int], tuple[Move, ...]]:
    node_of = {f"d{device}.0": node for device, node in enumerate(placement)}
    return node_of, minimal_moves(*case.catalogs, node_of, relay=True)


@settings(max_examples=60, deadline=None)
@given(cases(), placements)
def test_relays_send_what_a_node_lacks_to_it_once(case: Case, placement: list[int]) -> None:
    node_of, moves = relayed(case, placement)
    crossing = [move for move in moves if node_of[move.source.endpoint] != node_of[move.target.endpoint]]
    assert sum(move.num_bytes for move in crossing) == crossing_bytes(case, node_of)
    arrived: dict[tuple[int, TensorRef], NDArray[np.int64]] = {}
    for move in crossing:
        for tensor in move.tensors:
            key = (node_of[move.target.endpoint], tensor.ref)
            arrived.setdefault(key, np.zeros(tensor.shape, dtype=np.int64))[at(move.box)] += 1
    assert all(int(count.max()) == 1 for count in arrived.values())


@settings(max_examples=60, deadline=None)
@given(cases(), placements)
def test_relays_fill_each_target_element_exactly_once(case: Case, placement: list[int]) -> None:
    _, moves = relayed(case, placement)
    filled = landed(moves)
    for emu in case.targets:
        for endpoint, tensor, mask in rank_masks(case.state, emu):
            if mask.any():
                np.testing.assert_array_equal(filled.pop((endpoint, emu.unit, tensor.ref)), mask)
    assert not filled


@settings(max_examples=60, deadline=None)
@given(cases(), placements)
def test_relays_read_only_what_the_first_wave_has_brought_to_their_node(case: Case, placement: list[int]) -> None:
    node_of, moves = relayed(case, placement)
    brought = landed(move for move in moves if move.wave == 0)
    for move in moves:
        assert move.wave in (0, 1)
        if move.wave == 1:
            assert node_of[move.source.endpoint] == node_of[move.target.endpoint]
            assert all(brought[*move.source, tensor.ref][at(move.box)].all() for tensor in move.tensors)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_relays_on_one_node_are_the_moves_without_them(case: Case) -> None:
    assert minimal_moves(*case.catalogs, relay=True) == case.moves
