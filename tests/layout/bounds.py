"""What units hold and what they lack, in bytes per endpoint, counted on the masks of the reference.

What a target endpoint lacks is the lower bound of every movement: it has to come over the wire, and nothing else has to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.layout.tensors import CanonicalTensor, TensorRef
from tests.builders import Mask, rank_masks

WIDTH = {"int64": 8, "float32": 4, "bfloat16": 2}


def width(tensor: CanonicalTensor) -> int:
    """Bytes of one element."""
    return WIDTH[tensor.dtype]


def held_bytes(state: StateSpec, emus: Iterable[Emu]) -> Counter[EndpointId]:
    """Bytes that each endpoint holds of these units."""
    held: Counter[EndpointId] = Counter()
    for emu in emus:
        for endpoint, tensor, mask in rank_masks(state, emu):
            held[endpoint] += int(mask.sum()) * width(tensor)
    return held


def resident_masks(
    state: StateSpec, emus: Iterable[Emu], place_of: Callable[[EndpointId], Hashable] = str
) -> dict[tuple[Hashable, TensorRef], Mask]:
    """The elements of each tensor that each endpoint (or each node) holds of these units together."""
    held: dict[tuple[Hashable, TensorRef], Mask] = {}
    for emu in emus:
        for endpoint, tensor, mask in rank_masks(state, emu):
            key = (place_of(endpoint), tensor.ref)
            held[key] = held[key] | mask if key in held else mask
    return held


def lacking_bytes(
    state: StateSpec, sources: Iterable[Emu], targets: Iterable[Emu], source_state: StateSpec | None = None
) -> Counter[EndpointId]:
    """Bytes of what each endpoint needs for the target units and holds in none of the source units."""
    have = resident_masks(source_state or state, sources)
    lacking: Counter[EndpointId] = Counter()
    for emu in targets:
        for endpoint, tensor, mask in rank_masks(state, emu):
            known = have.get((endpoint, tensor.ref))
            lacking[endpoint] += int((mask if known is None else mask & ~known).sum()) * width(tensor)
    return +lacking
