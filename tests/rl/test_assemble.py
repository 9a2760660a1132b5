"""Whole tensors out of the pieces of all ranks, and the file that they leave in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nereus.errors import StoreError
from nereus.layout.layout import Layout
from nereus.layout.tensors import Kind
from nereus.rl.assemble import Piece, assemble, save_weights
from tests.rl.group import StrongWeights, make_shape, make_state, whole_parameters

SHAPE = make_shape(tied=True, num_kv_heads=1)
STATE = make_state(SHAPE)


def pieces(layout: Layout) -> list[Piece]:
    """What all ranks of a unit hold, moments (all two) and counters (all three) included."""
    found = []
    for rank in range(layout.size):
        for tensor, boxes in STATE.shards(layout, rank).items():
            for box in boxes:
                if tensor.kind is Kind.PARAMETER:
                    values = StrongWeights().read(tensor, box)
                else:
                    values = torch.full(
                        box.shape, 3 if tensor.kind is Kind.SCALAR else 2, dtype=getattr(torch, tensor.dtype)
                    )
                found.append(Piece(tensor.ref, box, values))
    return found


@pytest.mark.parametrize("layout", [Layout(), Layout(2), Layout(4, 2), Layout(1, 3), Layout(3, 2)], ids=str)
def test_pieces_of_any_layout_make_the_whole(layout: Layout) -> None:
    whole = assemble(STATE, reversed(pieces(layout)), Kind.PARAMETER)
    expected = whole_parameters(SHAPE)
    assert set(whole) == set(expected)
    assert all(torch.equal(whole[name], expected[name]) for name in expected)


def test_only_the_kind_that_is_asked_for_is_assembled() -> None:
    moments = assemble(STATE, pieces(Layout(2, 2)), Kind.EXP_AVG)
    assert set(moments) == set(whole_parameters(SHAPE))
    assert all((values == 2).all() for values in moments.values())
    counters = assemble(STATE, pieces(Layout(2, 2)), Kind.SCALAR)
    assert {name: value.item() for name, value in counters.items()} == dict.fromkeys(counters, 3)
    assert all(value.dtype == torch.int64 for value in counters.values())


def test_element_that_no_rank_holds_is_refused_by_name_and_number() -> None:
    held = [p for p in pieces(Layout(2)) if not (p.ref.name.endswith("1.mlp.up_proj.weight") and p.box.low[0] > 0)]
    missing = SHAPE.ffn_size // 2 * SHAPE.hidden_size
    with pytest.raises(StoreError, match=rf"model.layers.1.mlp.up_proj.weight: {missing} of {2 * missing} elements"):
        assemble(STATE, held, Kind.PARAMETER)


def test_saved_file_holds_the_weights_and_no_half_written_one_is_left(tmp_path: Path) -> None:
    weights = whole_parameters(SHAPE, dtype="float32")
    save_weights(tmp_path / "model.safetensors", weights)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    loaded = load_file(tmp_path / "model.safetensors")
    assert set(loaded) == set(weights)
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
