"""The digest adds up: equal for every layout of one state, and any element that is lost, doubled or changed is seen.

Trap 12: elements are counted, not names.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.emu.digest import BoxDigest, Digest, Sums, logical_digest, unit_digests
from nereus.emu.unit import Emu
from nereus.errors import DigestMismatch
from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import Kind, TensorRef
from tests.builders import Values, fused_state, global_values, make_emu, make_emus, make_model, shape_texts, thin_state
from tests.layout.models import thin_trained_state

TIED = thin_state(make_model(tied=True, num_heads=3, num_kv_heads=3))
SHAPES = sorted({text.rsplit(" ", 1)[0] for text in shape_texts(8)})
SHAPES_OF = {tensor.ref: tensor.shape for tensor in TIED.tensors}
WEIGHTS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


def mixed(values: Values, box: Box) -> Sums:
    """A stand-in for the hash: element values are unique, so a weighted square of each names element and index."""
    elements = [int(v) + 1 for v in values[box.slices((0,) * values.ndim)].flat]
    first, second = (sum(e * e * weight for e in elements) % 2**64 for weight in WEIGHTS)
    return first, second


def hashed(emu: Emu) -> list[BoxDigest]:
    """What the endpoints of a unit hash, box by box."""
    values = global_values(TIED)
    return [
        BoxDigest(tensor.ref, box, mixed(values[tensor.ref], box))
        for rank in range(emu.layout.size)
        for tensor, boxes in TIED.shards(emu.layout, rank).items()
        for box in boxes
    ]


def digest(emu: Emu) -> Digest:
    return logical_digest(hashed(emu), SHAPES_OF)


@pytest.mark.parametrize("text", SHAPES)
def test_digest_is_the_same_for_every_layout(text: str) -> None:
    values = global_values(TIED)
    assert digest(make_emu(text)) == {ref: mixed(values[ref], Box.whole(shape)) for ref, shape in SHAPES_OF.items()}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_digest_counts_shared_kv_heads_of_a_fused_tensor_once(tp: int) -> None:
    state = fused_state(num_kv_heads=2)
    shapes = {tensor.ref: tensor.shape for tensor in state.tensors}
    held = [state.shards(make_emu(f"tp{tp}").layout, rank).items() for rank in range(tp)]
    boxes = [BoxDigest(t.ref, box, (box.volume, 0)) for t, boxes in chain(*held) for box in boxes]
    assert logical_digest(boxes, shapes) == {ref: (int(np.prod(shape)), 0) for ref, shape in shapes.items()}


@given(st.permutations(range(12)))
def test_digest_does_not_depend_on_the_order_of_reports(order: list[int]) -> None:
    boxes = hashed(make_emu("tp2 pp2"))
    head = [boxes[index] for index in order]
    assert logical_digest([*head, *boxes[12:]], SHAPES_OF) == logical_digest(boxes, SHAPES_OF)


@pytest.mark.parametrize("text", ["tp2 pp3", "tp8", "pp6"])
def test_digest_refuses_a_box_that_is_missing(text: str) -> None:
    boxes = hashed(make_emu(text))
    for ref in {box.ref for box in boxes}:
        first = next(box for box in boxes if box.ref == ref)
        lost = [box for box in boxes if (box.ref, box.box) != (first.ref, first.box)]
        with pytest.raises(DigestMismatch, match=str(ref)):
            logical_digest(lost, SHAPES_OF)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight", "updates"])
def test_digest_refuses_replicas_that_differ(name: str) -> None:
    boxes = hashed(make_emu("tp2 pp2"))
    last = max(index for index, box in enumerate(boxes) if box.ref.name == name)
    boxes[last] = boxes[last]._replace(sums=(1, 1))
    with pytest.raises(DigestMismatch, match=name):
        logical_digest(boxes, SHAPES_OF)


def test_digest_sums_stay_below_two_to_the_64() -> None:
    ref = TensorRef("w", Kind.PARAMETER)
    parts = [BoxDigest(ref, Box((i,), (i + 1,)), (2**64 - 1, 2**63)) for i in range(3)]
    assert logical_digest(parts, {ref: (3,)}) == {ref: (2**64 - 3, 2**63)}


def test_digest_refuses_boxes_that_overlap() -> None:
    ref = TensorRef("w", Kind.PARAMETER)
    parts = [BoxDigest(ref, Box((0,), (2,)), (1, 1)), BoxDigest(ref, Box((1,), (3,)), (1, 1))]
    with pytest.raises(DigestMismatch, match="w"):
        logical_digest(parts, {ref: (4,)})


def test_digest_refuses_a_tensor_that_is_no_part_of_the_state() -> None:
    stray = BoxDigest(TensorRef("stray", Kind.PARAMETER), Box((0,), (1,)), (1, 1))
    with pytest.raises(DigestMismatch, match="stray"):
        logical_digest([stray], {})


# --- replicas that share their optimizer state -------------------------------------------------------------------------

TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53))
TRAINED_SHAPES = {tensor.ref: tensor.shape for tensor in TRAINED.tensors}


def kept(text: str) -> dict[UnitId, list[BoxDigest]]:
    """What the endpoints of each replica hash of the trained model."""
    values = global_values(TRAINED)
    return {
        emu.unit: [
            BoxDigest(tensor.ref, box, mixed(values[tensor.ref], box))
            for rank in range(emu.layout.size)
            for tensor, boxes in TRAINED.shards(emu.layout, rank, emu.optimizer).items()
            for box in boxes
        ]
        for emu in make_emus(text)
    }


@pytest.mark.parametrize("text", ["dp2 zero1", "tp2 dp3 zero1", "tp2 pp2 dp2 zero1", "fsdp2 dp2 zero1", "dp8 zero1"])
def test_digest_of_each_zero1_replica_is_that_of_the_whole_state(text: str) -> None:
    """What all of them keep of the optimizer state counts for each."""
    values = global_values(TRAINED)
    whole = {ref: mixed(values[ref], Box.whole(shape)) for ref, shape in TRAINED_SHAPES.items()}
    found = unit_digests(kept(text), TRAINED_SHAPES, sharded=True)
    assert found == dict.fromkeys((emu.unit for emu in make_emus(text)), whole)


@pytest.mark.parametrize("text", ["dp2", "tp2 fsdp2", "fsdp4", "pp3 dp2"])
def test_digest_of_each_whole_replica_is_its_own(text: str) -> None:
    boxes = kept(text)
    alone = {unit: logical_digest(found, TRAINED_SHAPES) for unit, found in boxes.items()}
    assert unit_digests(boxes, TRAINED_SHAPES, sharded=False) == alone


def test_digest_refuses_zero1_replicas_of_which_one_is_missing() -> None:
    first, *_ = kept("dp3 zero1").items()
    with pytest.raises(DigestMismatch, match=r"exp_avg|master"):
        unit_digests(dict([first]), TRAINED_SHAPES, sharded=True)


def test_digest_refuses_parameters_that_only_another_zero1_replica_has() -> None:
    """Optimizer state is shared, parameters are not."""
    boxes = kept("dp2 zero1")
    lost = max(boxes)
    boxes[lost] = [box for box in boxes[lost] if box.ref.kind is not Kind.PARAMETER]
    with pytest.raises(DigestMismatch, match="elements are held"):
        unit_digests(boxes, TRAINED_SHAPES, sharded=True)
