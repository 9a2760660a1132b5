"""Makes the parameters of decoder layers: the two ways in which tensor parallelism cuts a matrix, with its bias.

split_outputs   each TP rank computes some of the outputs (q, k, v, gate, up); the bias is cut with them
split_inputs    each TP rank adds up some of the inputs (o, down); the bias is whole on every rank
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment

Segments = tuple[Segment, ...]


def heads(count: int, head_dim: int) -> Segment:
    """Consecutive heads, never cut through."""
    return Segment(count * head_dim, head_dim)


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Makes the parameters of the layers of one model."""

    dtype: str
    stem: str
    """What the names of a layer begin with, before its number."""
    transposed: bool = False
    """Whether matrices are (inputs, outputs), as in GPT-2's Conv1D, rather than (outputs, inputs)."""

    def one(
        self, layer: int, name: str, shape: tuple[int, ...], axis: int | None = None, segments: Segments = ()
    ) -> CanonicalTensor:
        """A tensor of a layer; whole on every TP rank without an axis."""
        full = f"{self.stem}.{layer}.{name}"
        return CanonicalTensor(full, Kind.PARAMETER, shape, self.dtype, Place.LAYER, layer, axis, segments)

    def split_outputs(
        self, layer: int, part: str, inputs: int, segments: Segments, *, bias: bool = False
    ) -> Iterator[CanonicalTensor]:
        """A matrix whose outputs are cut, and its bias."""
        outputs = sum(segment.length for segment in segments)
        yield self._matrix(layer, part, outputs, inputs, 0, segments)
        if bias:
            yield self.one(layer, f"{part}.bias", (outputs,), 0, segments)

    def split_inputs(
        self, layer: int, part: str, segments: Segments, outputs: int, *, bias: bool = False
    ) -> Iterator[CanonicalTensor]:
        """A matrix whose inputs are cut, and its bias."""
        inputs = sum(segment.length for segment in segments)
        yield self._matrix(layer, part, outputs, inputs, 1, segments)
        if bias:
            yield self.one(layer, f"{part}.bias", (outputs,))

    def _matrix(self, layer: int, part: str, outputs: int, inputs: int, axis: int, segments: Segments) -> CanonicalTensor:
        shape, axis = ((inputs, outputs), 1 - axis) if self.transposed else ((outputs, inputs), axis)
        return self.one(layer, f"{part}.weight", shape, axis, segments)


def at_end(place: Place, name: str, shape: tuple[int, ...], dtype: str, *, cut: bool = False) -> CanonicalTensor:
    """A tensor of the first or the last pipeline rank; cut on its rows if so, as a vocabulary is."""
    segments = (Segment(shape[0]),) if cut else ()
    return CanonicalTensor(name, Kind.PARAMETER, shape, dtype, place, axis=0 if cut else None, segments=segments)
