"""Messages: what an endpoint sends to another, cut so that buffers stay within a bucket each way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, Site, Tensors, UnitId
from nereus.layout.moves import Move
from nereus.layout.tensors import CanonicalTensor, Kind, Place, TensorRef
from nereus.transition.collectives import TRANSFER, AllGather, GroupKey, Pairwise, Part
from nereus.transition.messages import ALONE_BYTES, WINDOW, Message, buffer_bytes, messages
from nereus.transition.ops import Op
from tests.builders import Values, make_emus, make_model, make_plan
from tests.layout.models import thin_trained_state
from tests.transition.scenarios import planned, target_plan
from tests.transition.test_carrying_over import on_any_devices

UNIT = UnitId("actor_training", 0, 0)
TRAINED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3))
WIDEST = {"int64": 8, "float32": 4, "bfloat16": 2}
Boxes = list[tuple[UnitId, Tensors, Box]]


@st.composite
def boxes(draw: st.DrawFn) -> Boxes:
    """Boxes of one to three alike tensors, of all widths and up to two axes."""
    found: Boxes = []
    for index in range(draw(st.integers(1, 6))):
        shape = tuple(draw(st.lists(st.integers(1, 12), max_size=2)))
        dtype = draw(st.sampled_from(sorted(WIDEST)))
        count = draw(st.integers(1, 3))
        alike = (CanonicalTensor(f"t{index}.{i}", Kind.PARAMETER, shape, dtype, Place.EVERYWHERE) for i in range(count))
        low = tuple(draw(st.integers(0, extent - 1)) for extent in shape)
        high = tuple(draw(st.integers(start + 1, extent)) for start, extent in zip(low, shape, strict=True))
        found.append((UNIT, tuple(alike), Box(low, high)))
    return found


def size_of(message: Message) -> int:
    return sum(WIDEST[piece.tensor.dtype] * int(np.prod(piece.box.shape, dtype=int)) for piece in message)


def counts(pieces: Iterator[tuple[CanonicalTensor, Box]]) -> dict[TensorRef, Values]:
    """How often each element is named."""
    found: dict[TensorRef, Values] = {}
    for tensor, box in pieces:
        count = found.setdefault(tensor.ref, np.zeros(tensor.shape, dtype=np.int64))
        count[tuple(slice(low, high) for low, high in zip(box.low, box.high, strict=True))] += 1
    return found


@given(boxes(), st.integers(1, 400))
def test_messages_carry_every_element_once(case: Boxes, max_bytes: int) -> None:
    found = counts((piece.tensor, piece.box) for message in messages(case, max_bytes) for piece in message)
    wanted = counts((tensor, box) for _, tensors, box in case for tensor in tensors)
    assert found.keys() == wanted.keys()
    for ref, count in wanted.items():
        np.testing.assert_array_equal(found[ref], count)


@given(boxes(), st.integers(1, 400))
def test_message_is_no_larger_than_allowed_unless_one_row_is(case: Boxes, max_bytes: int) -> None:
    for message in messages(case, max_bytes):
        if size_of(message) > max_bytes:
            (piece,) = message
            assert not piece.box.shape or piece.box.shape[0] == 1


@given(boxes(), st.integers(1, 400))
def test_pieces_know_their_size(case: Boxes, max_bytes: int) -> None:
    assert all(piece.num_bytes == size_of((piece,)) for message in messages(case, max_bytes) for piece in message)


@given(boxes(), st.integers(1, 400))
def test_pieces_of_a_message_start_where_their_dtype_may(case: Boxes, max_bytes: int) -> None:
    """In one buffer, an element of eight bytes must not start at an odd multiple of two."""
    for message in messages(case, max_bytes):
        offset = 0
        for piece in message:
            assert offset % WIDEST[piece.tensor.dtype] == 0
            offset += size_of((piece,))


def test_large_piece_travels_alone_and_small_ones_together() -> None:
    large = CanonicalTensor("large", Kind.PARAMETER, (ALONE_BYTES // 4,), "float32", Place.EVERYWHERE)
    small = [CanonicalTensor(f"small{i}", Kind.PARAMETER, (3,), "float32", Place.EVERYWHERE) for i in range(4)]
    tensors = [small[0], large, *small[1:]]
    found = messages([(UNIT, (tensor,), Box.whole(tensor.shape)) for tensor in tensors], 1 << 24)
    assert [[piece.tensor.name for piece in message] for message in found] == [
        ["large"],
        ["small0", "small1", "small2", "small3"],
    ]


def test_nothing_to_send_is_no_message() -> None:
    assert messages([], 100) == ()


# --- how much is under way ---------------------------------------------------------------------------------------------


def under_way(op: Op, endpoint: EndpointId) -> tuple[int, int]:
    """The most bytes that an endpoint has under way out and in: WINDOW messages of each peer and exchange of a wave."""
    most = [0, 0]
    by_wave: defaultdict[int, list[tuple[tuple[Message, ...], tuple[Message, ...]]]] = defaultdict(list)
    for exchange in op.exchanges:
        to: dict[tuple[EndpointId, EndpointId], Boxes] = {}
        if isinstance(exchange, AllGather):
            for sender, parts in zip(exchange.group.members, exchange.parts, strict=True):
                each = [(part.unit, part.tensors, part.box) for part in parts]
                to.update({(sender, receiver): each for receiver in exchange.group.members if receiver != sender})
        else:
            for move in exchange.moves:
                pair = (move.source.endpoint, move.target.endpoint)
                to.setdefault(pair, []).append((move.source.unit, move.tensors, move.box))
        for peer in {e for pair in to if endpoint in pair for e in pair} - {endpoint}:
            out, into = to.get((endpoint, peer), []), to.get((peer, endpoint), [])
            by_wave[exchange.wave].append((messages(out, op.message_bytes), messages(into, op.message_bytes)))
    for lines in by_wave.values():
        for way in (0, 1):
            for number in range(max(len(line[way]) for line in lines)):
                window = [message for line in lines for message in line[way][number : number + WINDOW]]
                most[way] = max(most[way], sum(map(size_of, window)))
    return most[0], most[1]


def assert_within_a_bucket(op: Op) -> None:
    for endpoint in op.members:
        assert max(under_way(op, endpoint)) <= op.bucket_bytes, (op.id, endpoint)
        assert sum(under_way(op, endpoint)) <= buffer_bytes(op, endpoint), (op.id, endpoint)


@pytest.mark.parametrize("bucket_bytes", [300, 3000])
def test_messages_under_way_stay_within_a_bucket_each_way(bucket_bytes: int) -> None:
    """With seven peers at most, a message has room for a row of 16 bytes at least."""
    for seed in range(60):
        current, target, devices = on_any_devices(seed)
        for op in planned(TRAINED, current, make_plan(target, devices=devices), bucket_bytes=bucket_bytes).ops:
            assert_within_a_bucket(op)


def test_messages_of_a_split_stay_within_a_bucket_each_way() -> None:
    current = make_emus("tp4")
    (split,) = planned(TRAINED, current, target_plan(current, "tp1 dp4"), fuse=False, bucket_bytes=300).ops
    assert_within_a_bucket(split)


# --- buffers -----------------------------------------------------------------------------------------------------------


ROWS = CanonicalTensor("rows", Kind.PARAMETER, (12, 5), "float32", Place.EVERYWHERE)
"""Twelve rows of 20 bytes."""

OLD, NEW = UnitId("actor_training", 0, 0), UnitId("actor_training", 1, 1)


def first_rows(rows: int) -> Box:
    return Box((0, 0), (rows, 5))


def gather(*rows: int) -> AllGather:
    members = tuple(f"d{index}.0" for index in range(len(rows)))
    parts = tuple((Part((ROWS,), first_rows(count), OLD),) for count in rows)
    return AllGather(GroupKey(members, TRANSFER), parts, (NEW,) * len(rows))


def pairs(*moves: tuple[int, int, int]) -> Pairwise:
    """Moves of so many rows from a device to another."""
    made = tuple(Move((ROWS,), first_rows(n), Site(f"d{a}.0", OLD), Site(f"d{b}.0", NEW)) for a, b, n in moves)
    return Pairwise(GroupKey.of([s.endpoint for m in made for s in (m.source, m.target)], TRANSFER), made)


def rows_in_buffers(*exchanges: AllGather | Pairwise, bucket_bytes: int = 1 << 20) -> list[int]:
    """Rows in the buffers of devices 0 to 3."""
    op = Op("e1.0.Any", ("Split",), "actor_training", (), (), (), exchanges, (), bucket_bytes)
    return [buffer_bytes(op, f"d{device}.0") // 20 for device in range(4)]


def test_gather_buffers_a_copy_for_each_other_member_and_what_they_send() -> None:
    assert rows_in_buffers(gather(6, 6)) == [12, 12, 0, 0]
    assert rows_in_buffers(gather(4, 4, 4)) == [16, 16, 16, 0]
    assert rows_in_buffers(gather(1, 2, 4)) == [8, 9, 11, 0]


def test_pairs_buffer_what_an_endpoint_sends_and_receives() -> None:
    assert rows_in_buffers(pairs((0, 1, 3), (1, 0, 2), (0, 2, 1))) == [6, 5, 1, 0]


def test_buffers_of_several_exchanges_add_up_on_the_members_of_each() -> None:
    assert rows_in_buffers(gather(6, 6), pairs((1, 2, 3))) == [12, 15, 3, 0]


def test_buffers_hold_a_bucket_each_way_at_most() -> None:
    assert rows_in_buffers(pairs((0, 1, 9), (1, 0, 2)), bucket_bytes=5 * 20) == [5 + 2, 2 + 5, 0, 0]


def test_local_copies_need_no_buffer() -> None:
    move = Move((ROWS,), first_rows(12), Site("d0.0", OLD), Site("d0.0", NEW))
    assert buffer_bytes(Op("e1.0.Any", ("Merge",), "actor_training", (), (), (move,), (), ()), "d0.0") == 0
