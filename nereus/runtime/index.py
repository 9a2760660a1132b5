"""The index of a checkpoint as catalogs, and from what was written.

StateWritten of all + the loop's state -> Index          Index -> Catalog: files stand for endpoints
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nereus.control.checkpoint import Checkpoint, StageDigests
from nereus.control.events import StateWritten
from nereus.errors import UserError
from nereus.layout.box import Box
from nereus.layout.catalog import Catalog, Site, StateSpec, UnitId
from nereus.layout.saving import box_key
from nereus.layout.tensors import CanonicalTensor, Kind, TensorRef
from nereus.spec.checkpoint import Index, SavedBox, SavedTensor


def index_of(
    *,
    job: str,
    run: str,
    tag: str,
    loop: Mapping[str, Any],
    states: Mapping[str, StateSpec],
    written: Iterable[StateWritten],
    digests: StageDigests,
) -> Index:
    """What was written, tensor by tensor."""
    boxes: dict[tuple[str, TensorRef], list[SavedBox]] = {}
    for part in written:
        for stage, (ref, box, _) in part.digests:
            key = box_key(stage, ref, box)
            boxes.setdefault((stage, ref), []).append(SavedBox(low=box.low, high=box.high, file=part.file, key=key))
    stages: dict[str, list[SavedTensor]] = {stage: [] for stage in states}
    for stage, ref, sums in digests:
        tensor = states[stage].tensor(ref)
        stages[stage].append(
            SavedTensor(
                name=ref.name,
                kind=str(ref.kind),
                dtype=tensor.dtype,
                shape=tensor.shape,
                digest=sums,
                boxes=tuple(boxes[stage, ref]),
            )
        )
    return Index(
        job=job,
        run=run,
        tag=tag,
        step=loop["step"],
        loop=dict(loop),
        stages={stage: tuple(tensors) for stage, tensors in stages.items()},
    )


def checkpoint_of(folder: str, index: Index, num_bytes: int, seconds: float) -> Checkpoint:
    """A checkpoint of another run as the core knows one; `seconds` it took to read and check it."""
    digests = tuple((stage, ref, entry.digest) for stage in index.stages for ref, entry in _entries(stage, index).items())
    return Checkpoint(folder=folder, step=index.step, digests=digests, num_bytes=num_bytes, seconds=seconds)


def saved_catalog(stage: str, state: StateSpec, index: Index) -> Catalog:
    """The boxes of a model-stage in a checkpoint; files stand for endpoints. Raises UserError for another model's state."""
    known = {tensor.ref: tensor for tensor in state.tensors}
    saved = _entries(stage, index)
    for ref, tensor in known.items():
        entry = saved.get(ref)
        if entry is None or (entry.shape, entry.dtype) != (tensor.shape, tensor.dtype):
            found = f"{entry.dtype} {list(entry.shape)}" if entry else "not there"
            raise UserError(
                f"the checkpoint's {stage} {ref} is {found}, and the job's {tensor.dtype} {list(tensor.shape)}; "
                "resume with the model and dtype of the run that wrote it"
            )
    held: dict[Site, dict[CanonicalTensor, list[Box]]] = {}
    for ref, entry in saved.items():
        if ref not in known:
            raise UserError(f"the checkpoint's {stage} has {ref}, and the job's has not; resume with the job that wrote it")
        for box in entry.boxes:
            shards = held.setdefault(Site(box.file, UnitId(stage, 0, -1)), {})
            shards.setdefault(known[ref], []).append(Box(box.low, box.high))
    return Catalog.landed(held)


def boxes_by_file(stage: str, index: Index) -> dict[tuple[str, TensorRef], list[tuple[Box, str]]]:
    """The boxes of each tensor in each file, with their keys."""
    found: dict[tuple[str, TensorRef], list[tuple[Box, str]]] = {}
    for ref, entry in _entries(stage, index).items():
        for box in entry.boxes:
            found.setdefault((box.file, ref), []).append((Box(box.low, box.high), box.key))
    return found


def _entries(stage: str, index: Index) -> dict[TensorRef, SavedTensor]:
    return {TensorRef(entry.name, Kind(entry.kind)): entry for entry in index.stages.get(stage, ())}
