"""What was learnt of accelerators, by kind and role, and the plain data that a file keeps of it.

Learnt --as_json--> {"version", "kinds": {kind: {role: {efficiencies, memory_scales}}}} --from_json--> Learnt
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nereus.cost.accelerator import AcceleratorModel, Key, Learnt
from nereus.cost.components import Component
from nereus.cost.operations import OpClass
from nereus.spec.efficiencies_file import VERSION, Names

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
