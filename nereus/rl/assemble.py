"""Whole tensors out of shards, and the file that a trained model leaves in.

Only for leaving the system (a file for an inference server, a test's comparison): nothing that runs is ever gathered.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from nereus.errors import StoreError
from nereus.layout.box import Box
from nereus.layout.catalog import StateSpec
from nereus.layout.tensors import Kind, TensorRef


class Piece(NamedTuple):
    """The values of one box of one tensor."""

    ref: TensorRef
    box: Box
    values: torch.Tensor


def assemble(state: StateSpec, pieces: Iterable[Piece], kind: Kind) -> dict[str, torch.Tensor]:
    """The whole tensors of one kind, by name, from the pieces of all ranks of a unit.

    Raises StoreError for an element that no piece holds.
    """
    wholes = {t.name: torch.empty(t.shape, dtype=getattr(torch, t.dtype)) for t in state.tensors if t.kind is kind}
    covered = {name: torch.zeros(whole.shape, dtype=torch.bool) for name, whole in wholes.items()}
    for ref, box, values in pieces:
        if ref.kind is kind:
            at = box.slices((0,) * len(box.low))
            wholes[ref.name][at] = values
            covered[ref.name][at] = True
    for name, mask in covered.items():
        if not mask.all():
            raise StoreError(f"{name}: {int((~mask).sum())} of {mask.numel()} elements are held by no rank")
    return wholes


def save_weights(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write parameters as a safetensors file under their HF names; a crash leaves no half-written file."""
    from safetensors.torch import save_file

    partial = path.with_suffix(".partial")
    save_file(weights, str(partial), metadata={"format": "pt"})
    partial.replace(path)
