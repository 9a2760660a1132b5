"""Pieces of mixed dtypes go through one staging buffer and come out as they were; buffers are used again."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.transition.messages import Message, Piece, message_size, messages
from nereus.transport.memory import DeviceMemory
from nereus.transport.staging import Buffers, Staging
from nereus.transport.store import DTYPES, UnitStore
from tests.transport.worker import CPU

LIMIT = 1 << 16
SOURCE, TARGET = UnitId("actor_training", 0, 0), UnitId("actor_generation", 0, 1)


def matrix(name: str, dtype: str, rows: int, columns: int) -> CanonicalTensor:
    return CanonicalTensor(name, Kind.PARAMETER, (rows, columns), dtype, Place.FIRST, None, 0, (Segment(rows),))


def make_store(unit: UnitId, tensors: list[CanonicalTensor], *, landed: bool = False) -> UnitStore:
    store = UnitStore(CPU, DeviceMemory("cpu", 1 << 20))
    store.open(unit, {tensor: (Box.whole(tensor.shape),) for tensor in tensors})
    for tensor in tensors if landed else ():
        whole = Box.whole(tensor.shape)
        store.write(unit, tensor.ref, whole).copy_(torch.randint(-9, 9, tensor.shape))
        store.land(unit, tensor.ref, whole)
    return store


def piece_of(tensor: CanonicalTensor, box: Box) -> Piece:
    return Piece(SOURCE, tensor, box, box.volume * tensor.item_bytes)


def at_target(message: Message) -> Message:
    return tuple(piece._replace(unit=TARGET) for piece in message)


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=8))
def test_boxes_of_any_dtypes_survive_one_buffer_bit_for_bit(parts: list[tuple[str, int, int]]) -> None:
    tensors = [matrix(f"t{i}", *part) for i, part in enumerate(parts)]
    tensors.append(CanonicalTensor("updates", Kind.SCALAR, (), "int64", Place.EVERYWHERE))
    source, target = make_store(SOURCE, tensors, landed=True), make_store(TARGET, tensors)
    # columns 1.. only, so that the views are strided
    boxes = [Box((0, 1), t.shape) if t.shape and t.shape[1] > 1 else Box.whole(t.shape) for t in tensors]
    (message,) = messages([(SOURCE, (tensor,), box) for tensor, box in zip(tensors, boxes, strict=True)], LIMIT)
    staging, buffer = Staging(CPU, LIMIT), torch.empty(message_size(message), dtype=torch.uint8)
    staging.pack(source, message, buffer)
    staging.unpack(target, at_target(message), buffer)
    for tensor, box in zip(tensors, boxes, strict=True):
        target.land(TARGET, tensor.ref, box)
        assert torch.equal(source.read(SOURCE, tensor.ref, box), target.read(TARGET, tensor.ref, box))


def test_elements_travel_in_the_dtype_of_the_target() -> None:
    trained, served = matrix("w", "float32", 2, 3), matrix("w", "bfloat16", 2, 3)
    source, target = make_store(SOURCE, [trained], landed=True), make_store(TARGET, [served])
    whole = Box.whole(trained.shape)
    values = torch.tensor([[1.0, 1 / 3, 1e-9], [3.14159, -7.7, 65537.0]])
    source.write(SOURCE, trained.ref, whole).copy_(values)
    message = (piece_of(served, whole),)
    assert message_size(message) == 12
    staging, buffer = Staging(CPU, LIMIT), torch.empty(12, dtype=torch.uint8)
    staging.pack(source, message, buffer)
    staging.unpack(target, at_target(message), buffer)
    target.land(TARGET, served.ref, whole)
    assert torch.equal(target.read(TARGET, served.ref, whole), values.to(torch.bfloat16))


def test_wider_elements_come_first_and_equals_keep_their_order() -> None:
    names = [("a", "bfloat16"), ("b", "float32"), ("c", "float64"), ("d", "float32"), ("e", "int64")]
    boxes = [(SOURCE, (matrix(name, dtype, 1, 1),), Box((0, 0), (1, 1))) for name, dtype in names]
    (message,) = messages(boxes, LIMIT)
    assert [piece.tensor.name for piece in message] == ["c", "e", "b", "d", "a"]


def test_buffer_that_was_given_back_is_used_again_for_as_many_bytes() -> None:
    buffers = Buffers(CPU, LIMIT)
    first = buffers.take(32)
    assert (first.numel(), first.dtype) == (32, torch.uint8)
    buffers.give(first)
    assert (buffers.used_bytes, buffers.held_bytes) == (0, 32)
    assert buffers.take(32).data_ptr() == first.data_ptr()
    assert buffers.take(32).data_ptr() != first.data_ptr()
    assert buffers.used_bytes == buffers.held_bytes == 64


def test_buffers_of_growing_size_make_room_for_each_other() -> None:
    buffers = Buffers(CPU, 100)
    for size in range(1, 101):
        assert buffers.has_room(size)
        buffers.give(buffers.take(size))
        assert buffers.held_bytes <= 100
    assert not buffers.has_room(101)
    assert buffers.has_room(0)


@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), max_size=20))
def test_rounds_that_have_room_stay_within_the_limit(rounds: list[list[int]]) -> None:
    buffers, under_way = Buffers(CPU, 100), deque[list[torch.Tensor]]()
    for sizes in rounds:
        while under_way and not buffers.has_room(sum(sizes)):
            for buffer in under_way.popleft():
                buffers.give(buffer)
        if buffers.has_room(sum(sizes)):
            under_way.append([buffers.take(size) for size in sizes])
        assert buffers.used_bytes == sum(buffer.numel() for each in under_way for buffer in each)
        assert buffers.used_bytes <= buffers.held_bytes <= 100


@pytest.mark.parametrize(
    ("source_dtype", "rows", "columns", "out", "into"),
    [
        ("float32", (0, 4), (0, 3), True, True),
        ("float32", (1, 3), (0, 3), True, True),
        ("float32", (1, 2), (1, 3), True, True),
        ("float32", (0, 4), (1, 3), False, False),
        ("float64", (0, 4), (0, 3), False, True),
    ],
    ids=["whole", "rows", "part of a row", "columns", "cast"],
)
def test_piece_in_one_run_of_memory_is_sent_from_there_and_received_there(
    source_dtype: str, rows: tuple[int, int], columns: tuple[int, int], out: bool, into: bool
) -> None:
    trained, served = matrix("w", source_dtype, 4, 3), matrix("w", "float32", 4, 3)
    source, target = make_store(SOURCE, [trained], landed=True), make_store(TARGET, [served])
    box = Box((rows[0], columns[0]), (rows[1], columns[1]))
    message, staging = (piece_of(served, box),), Staging(CPU, LIMIT)
    sent, received = staging.direct_source(source, message), staging.direct_target(target, at_target(message))
    assert (sent is not None, received is not None) == (out, into)
    if sent is not None:
        assert sent.numel() == box.volume * 4
        assert sent.data_ptr() == source.read(SOURCE, trained.ref, box).data_ptr()
    if received is not None:
        assert received.numel() == box.volume * 4
        assert received.data_ptr() == target.write(TARGET, served.ref, box).data_ptr()


def test_message_of_several_pieces_is_never_direct() -> None:
    tensors = [matrix("a", "float32", 2, 2), matrix("b", "float32", 2, 2)]
    source, staging = make_store(SOURCE, tensors, landed=True), Staging(CPU, LIMIT)
    message = tuple(piece_of(tensor, Box.whole(tensor.shape)) for tensor in tensors)
    assert staging.direct_source(source, message) is None
    assert staging.direct_target(source, message) is None
