"""The unit store: segments side by side, boxes as views, what has landed, all or nothing."""

from __future__ import annotations

import pytest
import torch

from nereus.errors import OutOfDeviceMemory, StoreError
from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import ITEM_BYTES, CanonicalTensor, Kind, Place, Segment, TensorRef
from nereus.transport.memory import DeviceMemory
from nereus.transport.store import DTYPES, UnitStore

UNIT = UnitId("actor_training", 0, 3)
FUSED = CanonicalTensor("gate_up", Kind.PARAMETER, (2, 12), "float32", Place.FIRST, None, 1, (Segment(4), Segment(8)))
COUNT = CanonicalTensor("updates", Kind.SCALAR, (), "int64", Place.EVERYWHERE)
GATE, UP = Box((0, 2), (2, 4)), Box((0, 8), (2, 12))
SCALAR = Box((), ())
SHARDS = {FUSED: (GATE, UP), COUNT: (SCALAR,)}
NUM_BYTES = 4 * (4 + 8) + 8


def make_store(capacity_bytes: int = 1000) -> tuple[UnitStore, DeviceMemory]:
    memory = DeviceMemory("cpu", capacity_bytes)
    return UnitStore(torch.device("cpu"), memory), memory


def put(store: UnitStore, tensor: CanonicalTensor, box: Box, value: int) -> None:
    store.write(UNIT, tensor.ref, box).fill_(value)
    store.land(UNIT, tensor.ref, box)


def fill(store: UnitStore) -> None:
    put(store, FUSED, GATE, 1)
    put(store, FUSED, UP, 2)
    put(store, COUNT, SCALAR, 7)


def test_every_movable_dtype_has_a_torch_dtype_of_its_size() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ITEM_BYTES


def test_segments_lie_side_by_side_in_one_contiguous_tensor() -> None:
    store, _ = make_store()
    store.open(UNIT, SHARDS)
    fill(store)
    local = store.tensors(UNIT, Kind.PARAMETER)["gate_up"]
    assert local.is_contiguous()
    assert local.tolist() == [[1, 1, 2, 2, 2, 2]] * 2
    assert store.tensors(UNIT, Kind.SCALAR)["updates"].item() == 7


def test_read_is_a_view_of_any_box_inside_a_held_one() -> None:
    store, _ = make_store()
    store.open(UNIT, SHARDS)
    fill(store)
    store.read(UNIT, FUSED.ref, Box((1, 9), (2, 11))).fill_(5)
    assert store.tensors(UNIT, Kind.PARAMETER)["gate_up"].tolist() == [[1, 1, 2, 2, 2, 2], [1, 1, 2, 5, 5, 2]]
    store.read(UNIT, COUNT.ref, SCALAR).fill_(8)
    assert store.tensors(UNIT, Kind.SCALAR)["updates"].item() == 8


@pytest.mark.parametrize("box", [Box((0, 3), (2, 9)), Box((0, 4), (2, 8)), Box((0, 8), (3, 12)), Box((), ())])
def test_box_outside_the_held_ones_is_refused_by_name(box: Box) -> None:
    store, _ = make_store()
    store.open(UNIT, SHARDS)
    for verb in (store.read, store.write, store.land):
        with pytest.raises(StoreError, match=r"actor_training/0@3: gate_up .* lies in none of the held boxes"):
            verb(UNIT, FUSED.ref, box)
    for verb in (store.read, store.write, store.land):
        with pytest.raises(StoreError, match="holds nothing of bias"):
            verb(UNIT, TensorRef("bias", Kind.PARAMETER), box)


def test_box_that_has_not_landed_is_not_read_and_the_unit_is_incomplete() -> None:
    store, _ = make_store()
    store.open(UNIT, SHARDS)
    assert store.catalog() == {UNIT: {}}
    store.land(UNIT, FUSED.ref, Box((0, 8), (1, 12)))
    store.land(UNIT, FUSED.ref, Box((1, 8), (2, 10)))
    with pytest.raises(StoreError, match=r"gate_up \(0, 8\):\(2, 12\) has not landed"):
        store.read(UNIT, FUSED.ref, UP)
    assert store.read(UNIT, FUSED.ref, Box((0, 8), (2, 10))).shape == (2, 2)
    assert not store.is_complete(UNIT)
    with pytest.raises(StoreError, match="is incomplete: gate_up"):
        store.tensors(UNIT, Kind.PARAMETER)
    assert sum(box.volume for box in store.catalog()[UNIT][FUSED]) == 6
    fill(store)
    assert store.is_complete(UNIT)
    assert store.catalog() == {UNIT: SHARDS}


def test_box_that_is_written_has_not_landed_until_it_is_said() -> None:
    store, _ = make_store()
    store.open(UNIT, SHARDS)
    store.write(UNIT, FUSED.ref, UP).fill_(2)
    with pytest.raises(StoreError, match="has not landed"):
        store.read(UNIT, FUSED.ref, UP)
    store.land(UNIT, FUSED.ref, UP)
    assert store.read(UNIT, FUSED.ref, UP).tolist() == [[2] * 4] * 2


def test_open_takes_all_bytes_or_none() -> None:
    store, memory = make_store(capacity_bytes=2 * NUM_BYTES - 1)
    store.open(UNIT, SHARDS)
    assert memory.by_category()["units"] == NUM_BYTES == store.units()[UNIT]
    other = UnitId("actor_training", 1, 3)
    with pytest.raises(OutOfDeviceMemory, match="open actor_training/1@3"):
        store.open(other, SHARDS)
    assert list(store.units()) == [UNIT]
    assert memory.used_bytes == NUM_BYTES


def test_shards_that_do_not_fit_together_leave_no_bytes_reserved() -> None:
    store, memory = make_store()
    with pytest.raises(StoreError, match="do not lie side by side"):
        store.open(UNIT, {FUSED: (GATE, Box((0, 8), (1, 12)))})
    assert memory.used_bytes == 0
    assert store.units() == {}


def test_unit_is_opened_once_and_released_once() -> None:
    store, memory = make_store()
    store.open(UNIT, SHARDS)
    with pytest.raises(StoreError, match="is open already"):
        store.open(UNIT, SHARDS)
    store.release(UNIT)
    assert memory.used_bytes == 0
    with pytest.raises(StoreError, match="is not open here"):
        store.release(UNIT)


def test_unit_is_opened_and_released_tensor_by_tensor() -> None:
    store, memory = make_store()
    store.open(UNIT, {COUNT: (SCALAR,)})
    put(store, COUNT, SCALAR, 7)
    store.open(UNIT, {FUSED: (GATE, UP)})
    assert memory.used_bytes == store.units()[UNIT] == NUM_BYTES
    assert store.read(UNIT, COUNT.ref, SCALAR).item() == 7
    assert not store.is_complete(UNIT)
    with pytest.raises(StoreError, match="updates:scalar is open already"):
        store.open(UNIT, {COUNT: (SCALAR,)})
    fill(store)
    store.release(UNIT, [FUSED.ref, TensorRef("bias", Kind.PARAMETER)])
    assert memory.used_bytes == store.units()[UNIT] == 8
    assert store.catalog() == {UNIT: {COUNT: (SCALAR,)}}
    store.open(UNIT, {FUSED: (GATE, UP)})
    with pytest.raises(StoreError, match="has not landed"):
        store.read(UNIT, FUSED.ref, GATE)
    store.release(UNIT, [FUSED.ref])
    store.release(UNIT, [COUNT.ref])
    assert store.units() == {}
    assert memory.used_bytes == 0


def test_tensors_that_do_not_fit_are_not_added_to_a_unit() -> None:
    store, memory = make_store(capacity_bytes=NUM_BYTES - 1)
    store.open(UNIT, {COUNT: (SCALAR,)})
    put(store, COUNT, SCALAR, 7)
    with pytest.raises(OutOfDeviceMemory, match="open actor_training/0@3"):
        store.open(UNIT, {FUSED: (GATE, UP)})
    assert memory.used_bytes == 8
    assert store.catalog() == {UNIT: {COUNT: (SCALAR,)}}


def test_unit_without_shards_is_legal_and_complete() -> None:
    store, memory = make_store()
    store.open(UNIT, {FUSED: ()})
    assert store.is_complete(UNIT)
    assert store.tensors(UNIT, Kind.PARAMETER) == {}
    assert memory.used_bytes == 0


# --- shards that change hands --------------------------------------------------------------------------------------------

NEXT = UnitId("actor_training", 1, 4)
TAKEN = {FUSED.ref: UNIT, COUNT.ref: UNIT}


def test_shard_that_changes_hands_is_the_same_memory_and_counted_once() -> None:
    store, memory = make_store()
    store.open(UNIT, SHARDS)
    fill(store)
    address = store.read(UNIT, FUSED.ref, GATE).data_ptr()
    store.open(NEXT, SHARDS, TAKEN)
    assert memory.used_bytes == NUM_BYTES
    assert store.is_complete(NEXT)
    assert store.read(NEXT, FUSED.ref, GATE).data_ptr() == address


@pytest.mark.parametrize("first", [UNIT, NEXT])
def test_shard_that_changed_hands_lives_until_both_units_are_released(first: UnitId) -> None:
    """The old unit goes at commit, the new one when the transition is taken back."""
    store, memory = make_store()
    store.open(UNIT, SHARDS)
    fill(store)
    store.open(NEXT, SHARDS, TAKEN)
    other = NEXT if first == UNIT else UNIT
    store.release(first)
    assert memory.used_bytes == NUM_BYTES
    assert store.tensors(other, Kind.PARAMETER)["gate_up"].tolist() == [[1, 1, 2, 2, 2, 2]] * 2
    store.release(other)
    assert memory.used_bytes == 0


def test_unit_takes_over_some_shards_and_opens_the_others() -> None:
    store, memory = make_store()
    store.open(UNIT, SHARDS)
    fill(store)
    store.open(NEXT, SHARDS, {COUNT.ref: UNIT})
    assert memory.used_bytes == 2 * NUM_BYTES - 8
    assert store.catalog()[NEXT] == {COUNT: (SCALAR,)}
    store.release(UNIT)
    assert memory.used_bytes == NUM_BYTES


@pytest.mark.parametrize("shards", [{FUSED: (GATE,)}, {FUSED: (UP, GATE)}])
def test_shard_of_other_boxes_cannot_be_taken_over(shards: dict[CanonicalTensor, tuple[Box, ...]]) -> None:
    store, memory = make_store()
    store.open(UNIT, SHARDS)
    fill(store)
    with pytest.raises(StoreError, match=r"gate_up .* no other unit can take it over"):
        store.open(NEXT, shards, TAKEN)
    assert (memory.used_bytes, set(store.catalog())) == (NUM_BYTES, {UNIT})


def test_shard_that_has_not_landed_cannot_be_taken_over() -> None:
    store, memory = make_store()
    store.open(UNIT, SHARDS)
    put(store, COUNT, SCALAR, 7)
    put(store, FUSED, GATE, 1)
    with pytest.raises(StoreError, match=r"gate_up .* is not here whole"):
        store.open(NEXT, SHARDS, TAKEN)
    assert (memory.used_bytes, set(store.catalog())) == (NUM_BYTES, {UNIT})


def test_tensors_have_one_order_however_the_unit_came_about() -> None:
    """Ranks sum gradients in the order of the store, so it must not depend on what changed hands where."""
    orders = []
    for taken in ({}, {COUNT.ref: UNIT}, {FUSED.ref: UNIT}, TAKEN):
        store, _ = make_store()
        store.open(UNIT, SHARDS)
        fill(store)
        store.open(NEXT, SHARDS, taken)
        for tensor in SHARDS:
            for box in SHARDS[tensor]:
                store.land(NEXT, tensor.ref, box)
        orders.append(list(store.catalog()[NEXT]))
    assert orders == [orders[0]] * 4
