"""Boxes of mixed dtypes go through one byte buffer and come out as they were."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.transport.memory import DeviceMemory
from nereus.transport.packing import Item, in_wire_order, pack, unpack, wire_bytes
from nereus.transport.store import DTYPES, UnitStore

SOURCE, TARGET = UnitId("actor_training", 0, 0), UnitId("actor_generation", 0, 1)


def matrix(name: str, dtype: str, rows: int, columns: int) -> CanonicalTensor:
    return CanonicalTensor(name, Kind.PARAMETER, (rows, columns), dtype, Place.FIRST, None, 0, (Segment(rows),))


def make_store(unit: UnitId, tensors: list[CanonicalTensor]) -> UnitStore:
    store = UnitStore(torch.device("cpu"), DeviceMemory("cpu", 1 << 20))
    store.open(unit, {tensor: (Box.whole(tensor.shape),) for tensor in tensors})
    return store


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=8))
def test_boxes_of_any_dtypes_survive_one_buffer_bit_for_bit(parts: list[tuple[str, int, int]]) -> None:
    tensors = [matrix(f"t{i}", *part) for i, part in enumerate(parts)]
    tensors.append(CanonicalTensor("updates", Kind.SCALAR, (), "int64", Place.EVERYWHERE))
    source, target = make_store(SOURCE, tensors), make_store(TARGET, tensors)
    # columns 1.. only, so that the views are strided
    boxes = [Box((0, 1), t.shape) if t.shape and t.shape[1] > 1 else Box.whole(t.shape) for t in tensors]
    for tensor in tensors:
        whole = source.write(SOURCE, tensor.ref, Box.whole(tensor.shape))
        whole.copy_(torch.randint(-9, 9, tensor.shape))
    sent = [Item(SOURCE, tensor, box) for tensor, box in zip(tensors, boxes, strict=True)]
    received = [Item(TARGET, tensor, box) for tensor, box in zip(tensors, boxes, strict=True)]
    buffer = torch.empty(wire_bytes(sent), dtype=torch.uint8)
    pack(source, sent, buffer)
    unpack(target, received, buffer)
    for tensor, box in zip(tensors, boxes, strict=True):
        assert torch.equal(source.read(SOURCE, tensor.ref, box), target.read(TARGET, tensor.ref, box))


def test_elements_travel_in_the_dtype_of_the_target() -> None:
    trained, served = matrix("w", "float32", 2, 3), matrix("w", "bfloat16", 2, 3)
    source, target = make_store(SOURCE, [trained]), make_store(TARGET, [served])
    whole = Box.whole(trained.shape)
    values = torch.tensor([[1.0, 1 / 3, 1e-9], [3.14159, -7.7, 65537.0]])
    source.write(SOURCE, trained.ref, whole).copy_(values)
    item = Item(SOURCE, served, whole)
    buffer = torch.empty(wire_bytes([item]), dtype=torch.uint8)
    assert buffer.numel() == 12
    pack(source, [item], buffer)
    unpack(target, [item._replace(unit=TARGET)], buffer)
    assert torch.equal(target.read(TARGET, served.ref, whole), values.to(torch.bfloat16))


def test_wider_elements_come_first_and_equals_keep_their_order() -> None:
    names = [("a", "bfloat16"), ("b", "float32"), ("c", "float64"), ("d", "float32"), ("e", "int64")]
    items = [Item(SOURCE, matrix(name, dtype, 1, 1), Box((0, 0), (1, 1))) for name, dtype in names]
    assert [item.tensor.name for item in in_wire_order(items)] == ["c", "e", "b", "d", "a"]
