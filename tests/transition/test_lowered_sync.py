"""Weight sync: live training units written into live generation units, what changed and nothing else, once per node."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.tensors import Kind, TensorRef
from nereus.transition.collectives import Pairwise
from nereus.transition.lowering import lower_sync
from nereus.transition.ops import BUCKET_BYTES, Op
from tests.builders import DEVICE_OF, Values, global_values, make_emus, make_model, make_state, rank_masks, thin_state
from tests.layout.bounds import lacking_bytes, resident_masks, width
from tests.transition.interpreter import Interpreter, Key

GENERATION = "actor_generation"
MODEL = make_model(tied=True, num_heads=3, num_kv_heads=3)
SERVED, TRAINED = thin_state(MODEL), make_state(MODEL, optimizer=True)
NODES = {endpoint: device // 4 for endpoint, device in DEVICE_OF.items()}
SYNCED = [
    *[("tp2 pp2", "tp4"), ("pp2 dp2", "tp2 dp2"), ("tp4", "tp4"), ("dp4", "tp4"), ("pp4", "dp4"), ("tp2 pp3", "tp3 dp2")],
    *[("fsdp4", "tp2 dp2"), ("tp2 fsdp2", "dp4"), ("dp4 zero1", "tp4"), ("fsdp2 dp2 zero1", "tp2 dp2"), ("dp2", "tp8")],
]
APART = [(source, target, first) for source, target in SYNCED for first in (0, 3, 12)]
"""Generation on the devices of training, on some of them, and on none."""


def sync(
    sources: tuple[Emu, ...],
    targets: tuple[Emu, ...],
    states: tuple[StateSpec, StateSpec] = (SERVED, SERVED),
    node_of: dict[EndpointId, int] | None = None,
) -> Op:
    return lower_sync(sources, states[0], targets, states[1], "sync", node_of or {}, BUCKET_BYTES)


def generation(text: str, first: int = 0) -> tuple[Emu, ...]:
    """Units of the generation stage on the devices from `first` on."""
    size = sum(len(emu.endpoints) for emu in make_emus(text))
    return make_emus(text, stage=GENERATION, devices=range(first, first + size))


def narrowed(state: StateSpec) -> StateSpec:
    kept = (tensor for tensor in state.tensors if tensor.kind in (Kind.PARAMETER, Kind.SCALAR))
    return StateSpec(tuple(t if t.kind is Kind.SCALAR else t.as_kind(t.kind, "bfloat16") for t in kept), state.num_layers)


def blank(state: StateSpec, emus: tuple[Emu, ...]) -> dict[Key, dict[TensorRef, Values]]:
    """Live units whose weights are out of date."""
    return {
        (endpoint, emu.unit): {tensor.ref: np.full(tensor.shape, -1) for tensor in state.tensors}
        for emu in emus
        for endpoint in emu.endpoints
    }


@pytest.mark.parametrize(("source", "target", "first"), APART)
def test_weight_sync_leaves_the_training_state_in_the_generation_units(source: str, target: str, first: int) -> None:
    sources, targets, served = make_emus(source), generation(target, first), narrowed(TRAINED)
    values = global_values(TRAINED)
    for node_of in ({}, NODES):
        run = Interpreter(TRAINED, sources)
        run.shards.update(blank(served, targets))
        run.run(sync(sources, targets, (TRAINED, served), node_of))
        for emu in targets:
            for endpoint, tensor, mask in rank_masks(served, emu):
                expected = np.where(mask, values[tensor.ref], -1)
                np.testing.assert_array_equal(run.shards[endpoint, emu.unit][tensor.ref], expected)


@pytest.mark.parametrize(("source", "target", "first"), APART)
def test_weight_sync_sends_only_what_each_endpoint_lacks(source: str, target: str, first: int) -> None:
    sources, targets = make_emus(source), generation(target, first)
    received: Counter[EndpointId] = Counter()
    for exchange in sync(sources, targets).exchanges:
        assert isinstance(exchange, Pairwise)
        for move in exchange.moves:
            received[move.target.endpoint] += move.num_bytes
    assert received == lacking_bytes(SERVED, sources, targets)


@pytest.mark.parametrize(("source", "target", "first"), APART)
def test_weight_sync_crosses_to_each_node_once(source: str, target: str, first: int) -> None:
    """The slow link carries what a node needs and has nowhere, and each of those elements once."""
    sources, targets = make_emus(source), generation(target, first)
    have, want = (resident_masks(SERVED, emus, NODES.__getitem__) for emus in (sources, targets))
    widths = {tensor.ref: width(tensor) for tensor in SERVED.tensors}
    needed = sum(int((mask & ~have[key] if key in have else mask).sum()) * widths[key[1]] for key, mask in want.items())
    crossing = sum(
        move.num_bytes
        for exchange in sync(sources, targets, node_of=NODES).exchanges
        if isinstance(exchange, Pairwise)
        for move in exchange.moves
        if NODES[move.source.endpoint] != NODES[move.target.endpoint]
    )
    assert crossing == needed


def test_weight_sync_passes_on_within_a_node_what_has_come_to_it() -> None:
    """Four whole replicas on another node: one copy crosses, shared out over them, and three copies stay on the node."""
    sources, targets = make_emus("tp1"), generation("dp4", first=4)
    op = sync(sources, targets, node_of=NODES)
    whole = lacking_bytes(SERVED, sources, targets[:1]).total()
    assert [(exchange.wave, exchange.num_bytes) for exchange in op.exchanges] == [(0, whole), (1, 3 * whole)]


def test_weight_sync_sends_the_width_of_the_reader() -> None:
    targets, state = generation("tp2", first=4), narrowed(SERVED)
    op = sync(make_emus("tp2"), targets, (SERVED, state))
    elements = Counter[str]()
    for _, tensor, mask in rank_masks(state, targets[0]):
        elements[tensor.dtype] += int(mask.sum())
    assert op.num_bytes == 2 * elements["bfloat16"] + 8 * elements["int64"]


@pytest.mark.parametrize(("source", "target", "first"), APART[::4])
def test_weight_sync_leaves_out_frozen_tensors(source: str, target: str, first: int) -> None:
    """Every unit has them from its birth: neither sent nor copied."""
    frozen = StateSpec(tuple(replace(t, frozen=t.layer in (0, 3)) for t in SERVED.tensors), SERVED.num_layers)
    trained = StateSpec(tuple(t for t in SERVED.tensors if t.layer not in (0, 3)), SERVED.num_layers)
    sources, targets = make_emus(source), generation(target, first)
    op = sync(sources, targets, (frozen, frozen))
    carriers = [*op.copies, *(m for exchange in op.exchanges if isinstance(exchange, Pairwise) for m in exchange.moves)]
    assert {tensor.layer for move in carriers for tensor in move.tensors} == {None, 1, 2, 4, 5}
    assert op.num_bytes == sync(sources, targets, (trained, trained)).num_bytes


def test_weight_sync_leaves_the_optimizer_state_where_it_is() -> None:
    op = sync(make_emus("tp2"), generation("tp1", first=8), (TRAINED, narrowed(TRAINED)))
    kinds = {
        t.kind for exchange in op.exchanges if isinstance(exchange, Pairwise) for m in exchange.moves for t in m.tensors
    }
    assert kinds == {Kind.PARAMETER, Kind.SCALAR}


def test_weight_sync_makes_and_frees_no_unit_and_can_be_run_again() -> None:
    op = sync(make_emus("tp2"), generation("tp1"))
    assert (op.primitives, op.stage, op.makes, op.frees) == (("WeightSync",), GENERATION, (), ())
    assert op.is_repeatable
    assert not op.is_release


def test_weight_sync_never_aliases_on_the_same_device() -> None:
    op = sync(make_emus("tp2"), generation("tp2"))
    assert op.exchanges == ()
    assert all(move.source.unit != move.target.unit for move in op.copies)


def test_weight_sync_is_the_same_each_time() -> None:
    sources, targets = make_emus("tp2 pp2"), generation("tp4 dp2", first=2)
    assert sync(sources, targets, node_of=NODES) == sync(sources, targets, node_of=NODES)
