"""What was learnt of accelerators, by kind and role, and the plain data that a file keeps of it.

    Learnt --as_json--> {"version", "kinds": {kind: {role: {efficiencies, memory_scales}}}} --from_json--> Learnt

Roles have efficiencies of their own: a token step and a training pass reach different shares of the same peak, and under a
robust loss the stage with fewer measurements would be taken for an outlier (decision 018).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nereus.cost.accelerator import AcceleratorModel
from nereus.cost.components import Component
from nereus.cost.operations import OpClass
from nereus.spec.efficiencies_file import VERSION, Names

Key = tuple[str, str]
"""Accelerator kind, and role: generation, inference or training."""

Learnt = Mapping[Key, AcceleratorModel]
"""What was measured; kinds and roles that are not in it start from what ships with the kind."""

NAMES = Names(tuple(op.value for op in OpClass), tuple(part.value for part in Component))
"""Operation classes and memory components that a file may name."""


def as_json(learnt: Learnt) -> dict[str, Any]:
    """Plain data to save."""
    kinds: dict[str, dict[str, Any]] = {}
    for (kind, role), model in sorted(learnt.items()):
        kinds.setdefault(kind, {})[role] = model.as_json()
    return {"version": VERSION, "kinds": kinds}


def from_json(data: Mapping[str, Any]) -> dict[Key, AcceleratorModel]:
    """What `as_json` gave, checked by `read_efficiencies`."""
    return {
        (kind, role): AcceleratorModel.from_json(saved)
        for kind, roles in data["kinds"].items()
        for role, saved in roles.items()
    }
