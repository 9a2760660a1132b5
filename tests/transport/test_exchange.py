"""What of an exchange goes through staging buffers, how much they hold, and that nothing goes through the host."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

import nereus.transport
from nereus.layout.box import Box
from nereus.layout.tensors import CanonicalTensor
from nereus.transition.messages import ALONE_BYTES, buffer_bytes
from nereus.transport.communicators import Communicators
from nereus.transport.exchange import Exchanges
from nereus.transport.store import UnitStore
from tests.transport.oracle import whole
from tests.transport.pair import A, B, SpiedStaging, exchange, make_stores, matrix, sent
from tests.transport.worker import CPU

pytestmark = pytest.mark.gloo

ROWS, COLUMNS = 512, 256
assert ROWS * COLUMNS * 4 >= 2 * ALONE_BYTES


def values_at_target(store: UnitStore, tensor: CanonicalTensor, box: Box) -> torch.Tensor:
    return store.read(B.unit, tensor.ref, box)


def test_large_pieces_in_one_run_are_sent_from_shards_and_received_into_them() -> None:
    tensor = matrix("w", ROWS, COLUMNS)
    boxes = [Box.whole(tensor.shape).along(0, 0, 300), Box.whole(tensor.shape).along(0, 300, ROWS)]
    stores = make_stores([tensor], [tensor])
    ends = exchange(sent((tensor, box) for box in boxes), stores)
    for staging in ends.values():
        assert staging.packed_messages == staging.unpacked_messages == []
        assert staging.peak_bytes == 0
    assert torch.equal(values_at_target(stores[B.endpoint], tensor, Box.whole(tensor.shape)), whole(tensor))


def test_large_piece_that_is_cut_to_messages_is_still_direct() -> None:
    tensor = matrix("w", ROWS, COLUMNS)
    box = Box.whole(tensor.shape)
    op = sent([(tensor, box)], bucket_bytes=ALONE_BYTES)
    assert op.message_bytes < ROWS * COLUMNS * 4 / 3
    stores = make_stores([tensor], [tensor])
    ends = exchange(op, stores)
    assert [staging.peak_bytes for staging in ends.values()] == [0, 0]
    assert torch.equal(values_at_target(stores[B.endpoint], tensor, box), whole(tensor))


def test_columns_are_packed_where_they_are_strided_and_received_directly_where_they_are_not() -> None:
    tensor = matrix("w", ROWS, COLUMNS)
    box = Box.whole(tensor.shape).along(1, 0, COLUMNS // 2)
    stores = make_stores([tensor], [])
    stores[B.endpoint].open(B.unit, {tensor: (box,)})
    ends = exchange(sent([(tensor, box)]), stores)
    assert len(ends[A.endpoint].packed_messages) == 1
    assert ends[B.endpoint].unpacked_messages == []
    assert ends[B.endpoint].peak_bytes == 0
    assert torch.equal(values_at_target(stores[B.endpoint], tensor, box), whole(tensor)[:, : COLUMNS // 2])


def test_rows_are_sent_directly_and_unpacked_where_they_are_strided() -> None:
    tensor, part = matrix("w", ROWS, COLUMNS), Box((0, 0), (ROWS, COLUMNS // 2))
    stores = make_stores([], [tensor])
    stores[A.endpoint].open(A.unit, {tensor: (part,)})
    stores[A.endpoint].write(A.unit, tensor.ref, part).copy_(whole(tensor)[:, : COLUMNS // 2])
    stores[A.endpoint].land(A.unit, tensor.ref, part)
    ends = exchange(sent([(tensor, part)]), stores)
    assert ends[A.endpoint].packed_messages == []
    assert len(ends[B.endpoint].unpacked_messages) == 1
    assert torch.equal(values_at_target(stores[B.endpoint], tensor, part), whole(tensor)[:, : COLUMNS // 2])


def test_piece_that_is_cast_is_packed_in_the_dtype_that_travels() -> None:
    trained, served = matrix("w", ROWS, COLUMNS), matrix("w", ROWS, COLUMNS, "bfloat16")
    box = Box.whole(served.shape)
    stores = make_stores([trained], [served])
    ends = exchange(sent([(served, box)]), stores)
    assert ends[A.endpoint].peak_bytes == ROWS * COLUMNS * 2
    assert ends[B.endpoint].peak_bytes == 0
    assert torch.equal(values_at_target(stores[B.endpoint], served, box), whole(trained).bfloat16())


def test_small_pieces_share_one_message() -> None:
    tensors = [matrix(f"w{i}", 3, 5 + i) for i in range(20)]
    stores = make_stores(tensors, tensors)
    ends = exchange(sent((tensor, Box.whole(tensor.shape)) for tensor in tensors), stores)
    assert [len(staging.packed_messages) for staging in ends.values()] == [1, 0]
    assert [len(staging.unpacked_messages) for staging in ends.values()] == [0, 1]
    for tensor in tensors:
        assert torch.equal(values_at_target(stores[B.endpoint], tensor, Box.whole(tensor.shape)), whole(tensor))


@pytest.mark.parametrize(
    "widths",
    [
        pytest.param([48] * 24, id="equal"),
        pytest.param(range(48, 24, -1), id="shrinking"),
        pytest.param(range(25, 49), id="growing"),
    ],
)
def test_staging_holds_no_more_than_was_reserved_for_it(widths: list[int]) -> None:
    """Strided pieces, two of which never fit into one message, so that each is one."""
    tensors = [matrix(f"w{i:02d}", 4, width) for i, width in enumerate(widths)]
    boxes = [(tensor, Box((0, 0), (4, tensor.shape[1] - 1))) for tensor in tensors]
    op = sent(boxes, bucket_bytes=2 * 16 * 47)
    stores = make_stores(tensors, tensors)
    ends = exchange(op, stores)
    assert sum(tensor.item_bytes * box.volume for tensor, box in boxes) > 4 * op.bucket_bytes
    assert len(ends[A.endpoint].packed_messages) == len(ends[B.endpoint].unpacked_messages) == len(boxes)
    for endpoint, staging in ends.items():
        assert 0 < staging.peak_bytes <= buffer_bytes(op, endpoint) <= op.bucket_bytes
    for tensor, box in boxes:
        assert torch.equal(values_at_target(stores[B.endpoint], tensor, box), whole(tensor)[box.slices((0, 0))])


def test_endpoint_with_nothing_to_exchange_still_copies() -> None:
    copied: list[str] = []
    communicators = Communicators(HashStore(), A.endpoint, CPU, timeout_s=1.0)
    Exchanges(()).run(make_stores([], [])[A.endpoint], communicators, SpiedStaging(CPU, 100), lambda: copied.append("all"))
    assert copied == ["all"]


HOST = frozenset({"cpu", "numpy", "tolist", "pin_memory"})
"""Names by which a tensor's elements go to the host, or through memory that is pinned for it."""


@pytest.mark.parametrize("name", ["exchange", "staging", "executor"])
def test_movement_never_copies_through_the_host(name: str) -> None:
    source = (Path(nereus.transport.__file__).parent / f"{name}.py").read_text()
    used = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    keywords = {node.arg for node in ast.walk(ast.parse(source)) if isinstance(node, ast.keyword)}
    words = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    assert "copy_" in used or name == "exchange"
    assert HOST & (used | keywords | words) == set()
