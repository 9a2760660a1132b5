"""Files of learnt efficiencies: what `nereus plan --save-efficiencies` writes, checked before it is believed.

    {"version": 1, "kinds": {kind: {role: {"efficiencies": {"classes": {class: {value, spread, observations}}}, ...}}}}

By accelerator kind, role and operation class, such as H100, training and gemm. The names of classes and memory components
are the cost model's, so they come in as arguments; what the numbers mean is in nereus/cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from nereus.spec.declared import RECORD, Real, Whole
from nereus.spec.hardware import ACCELERATORS
from nereus.spec.problems import Problem, from_validation, refuse, unknown
from nereus.spec.reading import read_data

VERSION = 1
"""Of the format: a file of another one is refused rather than misread."""

MOST_SPREAD = 20.0
"""Of a log; a factor of e^20 is no knowledge, and no number that arithmetic would survive."""


class SavedClass(BaseModel):
    """The efficiency of one operation class."""

    model_config = RECORD

    value: Real = Field(gt=0, le=1e6)
    """Achieved over datasheet."""
    spread: Real = Field(gt=0, le=MOST_SPREAD)
    """Standard deviation of its log."""
    observations: Whole = Field(ge=0)
    """Measured runs in which it occurred."""


class SavedScale(BaseModel):
    """The scale of one component of memory."""

    model_config = RECORD

    scale: Real = Field(gt=0, le=1e6)
    """Measured bytes over bytes by shape."""
    spread: Real = Field(gt=0, le=MOST_SPREAD)
    """Standard deviation of its log."""


class SavedEfficiencies(BaseModel):
    """The efficiencies of one kind in one role."""

    model_config = RECORD

    kind: str
    """Accelerator."""
    source: str
    """Where the figures come from."""
    num_measured: Whole = Field(ge=0)
    """Runs that they were learnt from."""
    common: Real = Field(default=0.0, ge=0, le=MOST_SPREAD)
    """Spread of a factor that all computation shares."""
    classes: dict[str, SavedClass]
    """By operation class."""


class SavedModel(BaseModel):
    """What is known of one kind in one role."""

    model_config = RECORD

    efficiencies: SavedEfficiencies
    memory_scales: dict[str, SavedScale]
    """By component of memory."""
    memory_error: Real = Field(ge=0, le=1)
    """Relative error of a predicted peak."""


class EfficienciesFile(BaseModel):
    """All that was learnt."""

    model_config = RECORD

    version: Literal[1]
    """Of the format."""
    kinds: dict[str, dict[Literal["generation", "inference", "training"], SavedModel]]
    """By accelerator kind and role."""


class Names(NamedTuple):
    """What may be named in a file."""

    classes: Collection[str]
    components: Collection[str]


def read_efficiencies(path: Path, names: Names) -> dict[str, Any]:
    """The plain data of a file, checked. Raises JobFileError with all of its problems in one message."""
    return parse_efficiencies(read_data(path, "file of efficiencies"), str(path), names)


def parse_efficiencies(data: object, name: str, names: Names) -> dict[str, Any]:
    """The same of plain data; `name` is what messages call it."""
    try:
        found = EfficienciesFile.model_validate(data)
    except ValidationError as error:
        problems = from_validation(error, EfficienciesFile, data)
        raise refuse([problem._replace(field=f"{name}: {problem.field}") for problem in problems]) from None
    wrong = list(_unknown(found, name, names))
    if wrong:
        raise refuse(wrong)
    return found.model_dump()


def _unknown(found: EfficienciesFile, name: str, names: Names) -> Iterator[Problem]:
    for kind, roles in found.kinds.items():
        if kind not in ACCELERATORS:
            yield Problem(f"{name}: kinds", kind, unknown(kind, ACCELERATORS, "accelerator"))
        for role, model in roles.items():
            field = f"{name}: kinds.{kind}.{role}"
            if model.efficiencies.kind != kind:
                yield Problem(f"{field}.efficiencies.kind", model.efficiencies.kind, f"it must be {kind}, as above it")
            for op in model.efficiencies.classes:
                if op not in names.classes:
                    yield Problem(f"{field}.efficiencies.classes", op, unknown(op, names.classes, "operation class"))
            for part in model.memory_scales:
                if part not in names.components:
                    yield Problem(f"{field}.memory_scales", part, unknown(part, names.components, "component of memory"))
