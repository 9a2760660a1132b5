"""The logical state that everybody moves, as plain data, and the oracle: the values of each whole tensor.

The oracle is a function of a tensor's key, so that every process can fill and check its own part. Cuts are written here
from the design, in numpy, and share no code with Nereus: they check what it moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.moving.shapes import Seat

DTYPES = {"float32": torch.float32, "int64": torch.int64}
"""The dtypes of the state: fp32 parameters and moments, int64 counters."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of the state: its true shape, its place in the pipeline, and how tensor parallelism cuts it."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    place: str
    """Which pipeline ranks hold it: "layer", that of its layer; "first"; "last"; "ends", both of these; "everywhere"."""
    layer: int | None
    axis: int | None
    """The axis that is cut; None for a tensor that every TP rank holds whole."""
    segments: tuple[tuple[int, int], ...]
    """(length, grain) of each run along the axis that is cut on its own, in multiples of its grain."""

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row across the cut axis."""
        return self.num_bytes // self.shape[self.axis] if self.axis is not None else self.num_bytes


class Part(NamedTuple):
    """What a seat holds of a tensor as the peers cut: equal chunks of ceil along the cut axis, the last ones shorter."""

    tensor: StateTensor
    seat: Seat

    @property
    def key(self) -> str:
        return self.tensor.key

    @property
    def is_counter(self) -> bool:
        """Whether every rank holds it."""
        return self.tensor.place == "everywhere"

    @property
    def offset(self) -> tuple[int, ...]:
        """Where the part starts in the whole tensor."""
        return tuple(self._span(axis)[0] for axis in range(len(self.tensor.shape)))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._span(axis)[1] for axis in range(len(self.tensor.shape)))

    def values(self) -> torch.Tensor:
        """The oracle's values: a view, not to be written."""
        axis = self.tensor.axis
        return whole(self.tensor) if axis is None else whole(self.tensor).narrow(axis, *self._span(axis))

    def empty(self) -> torch.Tensor:
        """Room for the part, not touched yet."""
        return torch.empty(self.shape, dtype=DTYPES[self.tensor.dtype])

    def _span(self, axis: int) -> tuple[int, int]:
        extent = self.tensor.shape[axis]
        if axis != self.tensor.axis:
            return 0, extent
        size = -(-extent // self.seat.tp)
        start = min(self.seat.tp_rank * size, extent)
        return start, min(size, extent - start)


@dataclass(frozen=True, slots=True)
class State:
    """The whole state of one replica."""

    tensors: tuple[StateTensor, ...]
    num_layers: int

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)

    def at(self, seat: Seat | None) -> list[StateTensor]:
        """The tensors of which a seat holds some part; none without a seat."""
        if seat is None:
            return []
        return [tensor for tensor in self.tensors if seat.pp_rank in _owners(tensor, seat.pp, self.num_layers)]

    def parts(self, seat: Seat | None) -> list[Part]:
        """What a seat holds, as the peers cut; nothing without a seat."""
        return [Part(tensor, seat) for tensor in self.at(seat)] if seat is not None else []


def _owners(tensor: StateTensor, pp: int, num_layers: int) -> set[int]:
    """The pipeline ranks of a tensor; layers in contiguous runs, as even as whole division makes them."""
    if tensor.layer is not None:
        starts = np.arange(pp) * num_layers // pp
        return {int(np.searchsorted(starts, tensor.layer, side="right")) - 1}
    return {"first": {0}, "last": {pp - 1}, "ends": {0, pp - 1}}.get(tensor.place, set(range(pp)))


def rows(tensor: StateTensor, tp: int, tp_rank: int) -> NDArray[np.bool_]:
    """Which rows along the cut axis a TP rank holds; one row that stands for all where nothing is cut.

    Grains are shared out by whole division; where there are fewer than ranks, neighbours hold the same one.
    """
    if tensor.axis is None:
        return np.ones(1, dtype=bool)
    parts = []
    for length, grain in tensor.segments:
        grains, starts = np.arange(length // grain), np.arange(tp) * (length // grain) // tp
        mine = (
            np.searchsorted(starts, grains, side="right") - 1 == tp_rank if len(grains) >= tp else grains == starts[tp_rank]
        )
        parts.append(np.repeat(mine, grain))
    return np.concatenate(parts)


@cache
def whole(tensor: StateTensor) -> torch.Tensor:
    """The oracle: the values of a whole tensor. It is kept, since every repeat needs it, and must not be written."""
    generator = torch.Generator().manual_seed(crc32(tensor.key.encode()))
    if tensor.dtype == "int64":
        return torch.randint(1 << 40, tensor.shape, generator=generator)
    return torch.randn(tensor.shape, generator=generator)


def cut(tensor: StateTensor, seat: Seat) -> torch.Tensor:
    """What Nereus should hold of a tensor in a seat: a copy of the oracle's rows, segments side by side."""
    if tensor.axis is None:
        return whole(tensor).clone()
    chosen = torch.from_numpy(np.flatnonzero(rows(tensor, seat.tp, seat.tp_rank)))
    return whole(tensor).index_select(tensor.axis, chosen)


def missing_bytes(state: State, old: Seat | None, new: Seat | None) -> int:
    """The fewest bytes that must reach an endpoint: what it holds in its new seat and did not in its old one."""
    if new is None:
        return 0
    resident = {tensor.key for tensor in state.at(old)}
    total = 0
    for tensor in state.at(new):
        wanted = rows(tensor, new.tp, new.tp_rank)
        if old is not None and tensor.key in resident:
            wanted = wanted & ~rows(tensor, old.tp, old.tp_rank)
        total += int(wanted.sum()) * tensor.row_bytes
    return total
