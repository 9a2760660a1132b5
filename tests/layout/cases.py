"""Movements to plan: a model and two plans, each on any devices in any order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, StateSpec, UnitId
from nereus.layout.moves import Move, minimal_moves
from nereus.layout.tensors import TensorRef
from tests.builders import (
    Values,
    degrees,
    fused_state,
    make_emus,
    make_layout,
    make_model,
    shape_texts,
    thin_state,
)
from tests.layout.models import thin_trained_state

STATES = {
    "tied": thin_state(make_model(tied=True, num_heads=3, num_kv_heads=3, vocab=53)),
    "untied": thin_state(make_model(tied=False)),
    "fused": fused_state(),
    "trained": thin_trained_state(make_model(tied=True, num_heads=4, num_kv_heads=2, vocab=53)),
}
SHAPES = [text for form in ("plain", "zero1", "fsdp") for text in shape_texts(8, form=form)]
SHAPES += ["tp2 fsdp2 dp2", "pp2 fsdp2 dp2", "tp2 pp2 fsdp2", "fsdp3 dp2", "fsdp2 dp4 zero1", "tp2 fsdp2 dp2 zero1"]
NUM_DEVICES = 10


class Case(NamedTuple):
    """A movement from source units to target units."""

    state: StateSpec
    sources: tuple[Emu, ...]
    targets: tuple[Emu, ...]

    @property
    def catalogs(self) -> tuple[Catalog, Catalog]:
        return Catalog.of(self.state, self.sources), Catalog.of(self.state, self.targets)

    @property
    def moves(self) -> tuple[Move, ...]:
        return minimal_moves(*self.catalogs)


def drawn_emus(draw: st.DrawFn, epoch: int) -> tuple[Emu, ...]:
    text = draw(st.sampled_from(SHAPES))
    size = make_layout(text).size * degrees(text)["dp"]
    return make_emus(text, devices=draw(st.permutations(range(NUM_DEVICES)))[:size], epoch=epoch)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any model, and any two plans over at most eight of ten devices."""
    return Case(STATES[draw(st.sampled_from(sorted(STATES)))], drawn_emus(draw, 0), drawn_emus(draw, 1))


def at(box: Box) -> tuple[slice, ...]:
    """The elements of a box in an array of the whole tensor."""
    return tuple(slice(low, high) for low, high in zip(box.low, box.high, strict=True))


def sent(moves: Iterable[Move]) -> list[Move]:
    """What crosses between endpoints."""
    return [move for move in moves if move.source.endpoint != move.target.endpoint]


def landed(moves: Iterable[Move]) -> dict[tuple[EndpointId, UnitId, TensorRef], Values]:
    """How often each element of a site's tensors is written."""
    counts: dict[tuple[EndpointId, UnitId, TensorRef], Values] = {}
    for move in moves:
        for tensor in move.tensors:
            key = (*move.target, tensor.ref)
            counts.setdefault(key, np.zeros(tensor.shape, dtype=np.int64))[at(move.box)] += 1
    return counts
