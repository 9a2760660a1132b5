"""The native shard store: the tensors of every unit that lives on one endpoint.

Each (unit, tensor) is one contiguous local tensor: the boxes of its segments side by side along the cut axis, so that
the model's code uses it as it stands, and every box is a view of it. No two units that stay alias memory: a shard that
changes hands has two names only until the unit that ends is released. What has landed is tracked per box: a unit that is
being received is open but incomplete, and only a complete one can be looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from nereus.errors import OutOfDeviceMemory, StoreError
from nereus.layout.box import Box
from nereus.layout.catalog import UnitId
from nereus.layout.tensors import CanonicalTensor, Kind, TensorRef
from nereus.transport.memory import DeviceMemory
from nereus.transport.ports import NOTHING, Shards
from nereus.transport.streams import Streams

DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
}
"""The torch dtype of each dtype name that `nereus.layout.tensors.ITEM_BYTES` knows."""


@dataclass(slots=True)
class _Shard:
    """One tensor of one unit: the boxes held, where each starts in the local tensor, and what has not landed yet."""

    tensor: CanonicalTensor
    boxes: tuple[Box, ...]
    local: torch.Tensor
    missing: list[Box]

    @classmethod
    def empty(cls, tensor: CanonicalTensor, boxes: tuple[Box, ...], device: torch.device) -> _Shard:
        local = torch.empty(_local_shape(tensor, boxes), dtype=DTYPES[tensor.dtype], device=device)
        return cls(tensor, boxes, local, list(boxes))

    def view(self, box: Box) -> torch.Tensor | None:
        """The elements of `box`, or None when no held box contains it."""
        start, axis = 0, self.tensor.axis
        for held in self.boxes:
            if held.contains(box):
                origin = held.low if axis is None else held.along(axis, held.low[axis] - start, held.high[axis]).low
                return self.local[box.slices(origin)]
            start += held.shape[axis] if axis is not None else 0
        return None

    def has_landed(self, box: Box) -> bool:
        return not self.missing or all(box.intersect(gap) is None for gap in self.missing)

    def land(self, box: Box) -> None:
        if box in self.missing:
            self.missing.remove(box)
            return
        self.missing = [rest for gap in self.missing for rest in gap.subtract(box)]

    def landed(self) -> tuple[Box, ...]:
        boxes = list(self.boxes)
        for gap in self.missing:
            boxes = [rest for box in boxes for rest in box.subtract(gap)]
        return tuple(boxes)


class UnitStore:
    """A ShardStore in plain tensors. One lane moves shards; another may read complete units between movements."""

    def __init__(self, device: torch.device, memory: DeviceMemory, streams: Streams | None = None) -> None:
        """`streams` are those of the lanes that use its shards; none on a CPU."""
        self.device = device
        self._memory = memory
        self._streams = streams or Streams(device)
        self._units: dict[UnitId, dict[TensorRef, _Shard]] = {}

    def catalog(self) -> Mapping[UnitId, Shards]:
        """Which boxes have landed, by unit; tensors of which nothing has landed are left out."""
        return {
            unit: {shard.tensor: boxes for shard in shards.values() if (boxes := shard.landed())}
            for unit, shards in self._units.items()
        }

    def read(self, unit: UnitId, ref: TensorRef, box: Box) -> torch.Tensor:
        """A view of `box`, of the box's shape, valid until the unit is released.

        Raises StoreError if the unit is not open, the box lies in no held box, or has not landed.
        """
        shard, view = self._view(unit, ref, box)
        if not shard.has_landed(box):
            raise StoreError(f"unit {unit}: {ref} {box.low}:{box.high} has not landed; it is read before it was received")
        return view

    def open(self, unit: UnitId, shards: Shards, taken_over: Mapping[TensorRef, UnitId] = NOTHING) -> None:
        """Allocate shards of a unit, empty; a unit may be opened tensor by tensor.

        A tensor of `taken_over` is the shard of the unit named there under another name, and counted once; nobody writes to
        it until one of both is released. Raises OutOfDeviceMemory, or StoreError for a tensor that is open already or
        cannot be taken over; nothing has been allocated then.
        """
        known = self._units.get(unit, {})
        again = [tensor.ref for tensor in shards if tensor.ref in known]
        if again:
            raise StoreError(f"unit {unit}: {again[0]} is open already; a shard is opened once")
        taken = {t.ref: self._whole(taken_over[t.ref], t.ref, boxes) for t, boxes in shards.items() if t.ref in taken_over}
        shards = {tensor: boxes for tensor, boxes in shards.items() if tensor.ref not in taken}
        num_bytes, operation = shards_bytes(shards), f"open {unit}"
        self._memory.reserve(operation, num_bytes, "units")
        try:
            made = {t.ref: _Shard.empty(t, boxes, self.device) for t, boxes in shards.items() if boxes}
        except torch.OutOfMemoryError as error:
            self._memory.free(num_bytes, "units")
            used, capacity = self._memory.used_bytes, self._memory.capacity_bytes
            raise OutOfDeviceMemory(self._memory.device, operation, num_bytes, used, capacity) from error
        except BaseException:
            self._memory.free(num_bytes, "units")
            raise
        # One order on every rank, however the unit came about: ranks walk through it from one collective to the next.
        self._units[unit] = dict(sorted({**known, **taken, **made}.items()))

    def write(self, unit: UnitId, ref: TensorRef, box: Box) -> torch.Tensor:
        """A view to receive `box` into. Raises StoreError as `read` does."""
        return self._view(unit, ref, box)[1]

    def land(self, unit: UnitId, ref: TensorRef, box: Box) -> None:
        """`box` holds its elements from now on. Raises StoreError for a tensor that is not open here."""
        shard = self._shards(unit).get(ref)
        if shard is None:
            raise StoreError(f"unit {unit} holds nothing of {ref} here; {box.low}:{box.high} cannot have landed")
        if not any(len(held.low) == len(box.low) and held.contains(box) for held in shard.boxes):
            raise StoreError(f"unit {unit}: {ref} {box.low}:{box.high} lies in none of the held boxes")
        shard.land(box)

    def release(self, unit: UnitId, refs: Collection[TensorRef] | None = None) -> None:
        """Drop a unit, or some of its tensors, and give their bytes back, save for those that have changed hands.

        Raises StoreError for a unit that is not open.
        """
        shards = self._shards(unit)
        gone = shards if refs is None else {ref: shards[ref] for ref in refs if ref in shards}
        kept = {ref: shard for ref, shard in shards.items() if ref not in gone}
        others = [held for other, held in self._units.items() if other != unit]
        last = {ref: shard for ref, shard in gone.items() if not any(held.get(ref) is shard for held in others)}
        for shard in last.values():
            self._streams.released(shard.local)
        self._memory.free(_allocated_bytes(last), "units")
        if kept:
            self._units[unit] = kept
        else:
            del self._units[unit]

    def units(self) -> dict[UnitId, int]:
        """The open units and the bytes of each; a shard that changes hands counts for both until the first is released."""
        return {unit: _allocated_bytes(shards) for unit, shards in list(self._units.items())}

    def is_complete(self, unit: UnitId) -> bool:
        """Whether every box of an open unit has landed. Raises StoreError for a unit that is not open."""
        return not any(shard.missing for shard in self._shards(unit).values())

    def tensors(self, unit: UnitId, kind: Kind) -> dict[str, torch.Tensor]:
        """The whole local tensors of a complete unit, by name: a view for one call, never to be kept.

        Segments lie side by side along the cut axis. Raises StoreError if the unit is not open or not complete.
        """
        shards = self._shards(unit)
        for shard in shards.values():
            if shard.missing:
                gap = shard.missing[0]
                raise StoreError(f"unit {unit} is incomplete: {shard.tensor.ref} {gap.low}:{gap.high} has not landed")
        return {ref.name: shard.local for ref, shard in shards.items() if ref.kind is kind}

    def _shards(self, unit: UnitId) -> dict[TensorRef, _Shard]:
        if unit not in self._units:
            raise StoreError(f"unit {unit} is not open here; open are {[str(known) for known in self._units]}")
        return self._units[unit]

    def _whole(self, unit: UnitId, ref: TensorRef, boxes: tuple[Box, ...]) -> _Shard:
        """A shard of a unit that another may take over: all of its boxes have landed, and they are these."""
        shard = self._shards(unit).get(ref)
        if shard is None or shard.missing or shard.boxes != boxes:
            raise StoreError(f"unit {unit}: {ref} {boxes} is not here whole; no other unit can take it over")
        return shard

    def _view(self, unit: UnitId, ref: TensorRef, box: Box) -> tuple[_Shard, torch.Tensor]:
        shard = self._shards(unit).get(ref)
        if shard is None:
            raise StoreError(f"unit {unit} holds nothing of {ref} here; {box.low}:{box.high} was asked for")
        view = shard.view(box) if len(box.low) == len(shard.tensor.shape) else None
        if view is None:
            held = ", ".join(f"{held.low}:{held.high}" for held in shard.boxes)
            raise StoreError(f"unit {unit}: {ref} {box.low}:{box.high} lies in none of the held boxes {held}")
        return shard, view


def shards_bytes(shards: Shards) -> int:
    """Bytes of these shards."""
    return sum(tensor.item_bytes * sum(box.volume for box in boxes) for tensor, boxes in shards.items())


def _allocated_bytes(shards: Mapping[TensorRef, _Shard]) -> int:
    return sum(shard.local.numel() * shard.local.element_size() for shard in shards.values())


def _local_shape(tensor: CanonicalTensor, boxes: tuple[Box, ...]) -> tuple[int, ...]:
    """The boxes side by side along the cut axis; a tensor that is not cut is held as one box."""
    shape = boxes[0].shape
    if tensor.axis is None:
        if len(boxes) != 1:
            raise StoreError(f"{tensor.ref} is not cut, but {len(boxes)} boxes of it are asked for")
        return shape
    others = {box.shape[: tensor.axis] + box.shape[tensor.axis + 1 :] for box in boxes}
    if len(others) != 1:
        raise StoreError(f"{tensor.ref}: boxes {boxes} do not lie side by side along axis {tensor.axis}")
    return (*shape[: tensor.axis], sum(box.shape[tensor.axis] for box in boxes), *shape[tensor.axis + 1 :])
