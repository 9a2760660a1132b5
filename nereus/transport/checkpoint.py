"""Shards to and from the files of a checkpoint: safetensors, one file per endpoint, a tensor per box.

    store --write_share--> <endpoint>.safetensors          files + index --read_units--> newborn units of any layout

A file is a source like any endpoint: what is read of it are the intersections of its boxes with those that a unit wants.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from nereus.emu.digest import BoxDigest
from nereus.emu.unit import Emu
from nereus.errors import StoreError, UserError
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, EndpointId, StateSpec, UnitId
from nereus.layout.moves import Move, minimal_moves
from nereus.layout.saving import Part, box_key
from nereus.layout.tensors import TensorRef
from nereus.runtime.checkpoints import WrittenFile, described
from nereus.runtime.index import boxes_by_file, saved_catalog
from nereus.spec.checkpoint import Index
from nereus.transport.digest import box_sums
from nereus.transport.ports import Shards, ShardStore


def write_share(store: ShardStore, parts: Iterable[Part], path: Path) -> tuple[WrittenFile, list[tuple[str, BoxDigest]]]:
    """Write boxes of units that are complete here as one file, which is on the disk when this returns; what was written.

    Takes as many bytes of host memory as the share has. Raises StoreError for a box that is not here, OSError.
    """
    tensors, digests = {}, []
    for unit, tensor, box in parts:
        values = store.read(unit, tensor.ref, box)
        tensors[box_key(unit.stage, tensor.ref, box)] = values.detach().cpu().contiguous()
        digests.append((unit.stage, BoxDigest(tensor.ref, box, box_sums(values, box, tensor.shape))))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path), metadata={"format": "pt"})
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return described(path), digests


def read_units(
    store: ShardStore, endpoint: EndpointId, emus: Iterable[Emu], states: Mapping[str, StateSpec], folder: Path, index: Index
) -> int:
    """Open this endpoint's part of newborn units and fill it from a checkpoint; bytes that were read.

    A unit that is complete already is left as it is. Raises UserError for another model's state and for files that cannot be
    read, StoreError if an element is in no box.
    """
    mine = [emu for emu in emus if endpoint in emu.endpoints and emu.unit not in store.catalog()]
    num_bytes = 0
    for stage in sorted({emu.stage for emu in mine}):
        state, units = states[stage], [emu for emu in mine if emu.stage == stage]
        shards = {emu.unit: state.shards(emu.layout, emu.rank_of(endpoint), emu.optimizer) for emu in units}
        for unit, wanted in shards.items():
            store.open(unit, wanted)
        sources = saved_catalog(stage, state, index)
        targets = Catalog.of(state, units).where(lambda site: site.endpoint == endpoint)
        num_bytes += _read(store, minimal_moves(sources, targets), boxes_by_file(stage, index), folder)
        for unit, wanted in shards.items():
            _check_whole(store, unit, wanted)
    return num_bytes


def _read(
    store: ShardStore,
    moves: Sequence[Move],
    boxes: Mapping[tuple[str, TensorRef], Sequence[tuple[Box, str]]],
    folder: Path,
) -> int:
    """Carry out moves whose sources are files; each file is opened once."""
    by_file: defaultdict[str, list[Move]] = defaultdict(list)
    for move in moves:
        by_file[move.source.endpoint].append(move)
    for name, wanted in sorted(by_file.items()):
        try:
            with safe_open(folder / name, framework="pt") as file:
                for move in wanted:
                    for tensor in move.tensors:
                        whole, key = next(known for known in boxes[name, tensor.ref] if known[0].contains(move.box))
                        view = store.write(move.target.unit, tensor.ref, move.box)
                        at = move.box.slices(whole.low)
                        view.copy_(file.get_slice(key)[at] if at else file.get_tensor(key))
                        store.land(move.target.unit, tensor.ref, move.box)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"checkpoint.folder: {folder / name} cannot be read ({error}); all nodes must see the folder"
            ) from error
    return sum(move.num_bytes for move in moves)


def _check_whole(store: ShardStore, unit: UnitId, wanted: Shards) -> None:
    """As many elements of each tensor have been read as the unit has."""
    landed = store.catalog().get(unit, {})
    for tensor, boxes in wanted.items():
        needed, found = (sum(box.volume for box in held) for held in (boxes, landed.get(tensor, ())))
        if found != needed:
            raise StoreError(f"unit {unit}: {found} of {needed} elements of {tensor.ref} were read from the checkpoint")
