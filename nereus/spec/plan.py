"""Which layout and devices each model-stage has, at the start and after scripted transitions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict, ValidationInfo, field_validator

from nereus.spec.declared import Declared, Whole
from nereus.spec.devices import MAX_DEVICES, Devices


class StageChoice(Declared):
    """The layout, DP degree and devices of one model-stage: the paper's pi_M, as a person writes it."""

    tp: Whole = Field(default=1, ge=1)
    """Tensor-parallel degree; it divides the query heads."""
    pp: Whole = Field(default=1, ge=1)
    """Pipeline stages; layers may be spread unevenly. 1 for actor_generation."""
    dp: Whole = Field(default=1, ge=1)
    """EMUs, that is replicas; it divides the global batch."""
    devices: Devices = Field(default=(), min_length=1, validate_default=True)
    """tp * pp * dp device numbers, dp groups in rank order, as a list or `0-3,6`. Default: the first tp * pp * dp."""
    micro_batch: Whole = Field(default=1, ge=1)
    """Sequences of one EMU that go through the model together. 1 needs the least memory; raise it for speed."""
    recompute: Annotated[bool, Strict()] = False
    """Whether the backward runs each layer again instead of keeping its activations: less memory, about a third slower."""

    @field_validator("devices", mode="before")
    @classmethod
    def _first_devices(cls, devices: object, info: ValidationInfo) -> object:
        if devices != ():
            return devices
        needed = info.data.get("tp", 1) * info.data.get("pp", 1) * info.data.get("dp", 1)
        return tuple(range(min(needed, MAX_DEVICES)))

    @property
    def num_devices(self) -> int:
        """Devices that the layout and DP degree take."""
        return self.tp * self.pp * self.dp


class ScriptedTransition(Declared):
    """A change of plan at a known boundary. Joining devices start first, leaving ones end last."""

    step: Whole = Field(ge=1)
    """Carried out at the boundary after this many completed RL steps."""
    join: Devices = ()
    """Devices that start before the transition; none by default."""
    leave: Devices = ()
    """Devices whose workers end after the transition; none by default."""
    stages: dict[str, StageChoice] = Field(default_factory=dict)
    """Model-stage -> its layout and devices from here on; a model-stage that isn't named stays as it is."""
