"""What all declarations have in common: frozen, no unknown fields, finite numbers, no silent conversions.

    YAML -> plain data -> Declared models -> cross-field checks -> Job

`Whole` and `Real` are strict: YAML has its own numbers, so `"4"` or `true` where a number belongs is a mistake.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict


class Declared(BaseModel):
    """Base of everything that a person declares in a job file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


RECORD: ConfigDict = {**Declared.model_config, "defer_build": True}
"""Of what programs write and read again: as strict, but built when a file is read, since most commands read none."""

Whole = Annotated[int, Strict(), Field(lt=2**63)]
"""A whole number that was written as one, and that 64 bits hold."""
Real = Annotated[float, Strict()]
"""A finite number; a whole one is fine, a string or a boolean isn't."""
