"""The index of a checkpoint: the catalog of its boxes, and the loop's state beside them, as index.json has it.

    model-stage -> canonical tensor: kind, dtype, global shape, digest -> boxes: low, high, (file, key)

Plain values: rooms above make catalogs of them. A checkpoint of another format is refused by its number.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nereus.errors import UserError

FORMAT: Literal[1] = 1
"""Number of this format; a later one that reads otherwise counts up."""


class _Strict(BaseModel):
    """Frozen, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SavedBox(_Strict):
    """One box, and where its values are."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    file: str
    key: str


class SavedTensor(_Strict):
    """One canonical tensor of a model-stage."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    digest: tuple[int, int]
    """The two sums over all elements modulo 2^64, see nereus.emu.digest."""
    boxes: tuple[SavedBox, ...]
    """Disjoint; together they are the whole tensor."""


class Index(_Strict):
    """What is in a checkpoint."""

    format: Literal[1] = FORMAT
    job: str
    """Name of the job."""
    run: str
    """Name of the run's folder."""
    tag: str
    """Which save of the run it is."""
    step: int = Field(ge=0)
    """RL steps that are complete: the state is that of the boundary after it, before its weight sync."""
    loop: dict[str, Any]
    """Step, updates, seed and sample ledger of the loop; all random streams follow from seed and logical coordinates."""
    stages: dict[str, tuple[SavedTensor, ...]]


def parse_index(text: str, where: str) -> Index:
    """The index in the text of a file; `where` names it. Raises UserError."""
    try:
        return Index.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{where}: {field}: {first['msg']}; name a checkpoint that this version has written") from None
