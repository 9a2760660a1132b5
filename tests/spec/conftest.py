"""A valid job as plain data, and edits of it by field path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

MISSING = "(no such field)"
Edit = Callable[..., dict[str, Any]]


def valid_job() -> dict[str, Any]:
    """8 devices on 2 nodes, of which 6 and 7 start at step 4 and leave at step 8; 4 query heads, 2 key-value heads."""
    return {
        "name": "test",
        "steps": 12,
        "model": {
            "hidden_size": 32,
            "num_layers": 4,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 8,
            "ffn_size": 48,
            "vocab_size": 64,
        },
        "task": {"name": "letter_class", "num_prompts": 32},
        "workload": {
            "prompts_per_step": 4,
            "samples_per_prompt": 6,
            "response_cap": [{"step": 1, "tokens": 6}, {"step": 11, "tokens": 11}],
        },
        "optimizer": {"learning_rate": 0.003},
        "cluster": {"nodes": 2, "devices_per_node": 4, "device": {"speed": 0.15, "memory": "64MiB"}},
        "absent": [6, 7],
        "plan": {
            "actor_generation": {"dp": 4},
            "reference_inference": {"dp": 2, "devices": "4-5"},
            "actor_training": {"tp": 2, "pp": 2, "dp": 1, "micro_batch": 8},
        },
        "transitions": [
            {"step": 4, "join": "6-7", "stages": {"actor_training": {"tp": 2, "dp": 2, "devices": "4-7"}}},
            {"step": 8, "leave": "6-7", "stages": {"actor_training": {"tp": 1, "dp": 2, "devices": "4-5"}}},
        ],
    }


@pytest.fixture(scope="session")
def make_data() -> Edit:
    """`make_data(("plan.actor_training.tp", 3), ...)`: a valid job, edited."""

    def make(*edits: tuple[str, Any]) -> dict[str, Any]:
        data = valid_job()
        for path, value in edits:
            *parents, last = (int(p) if p.isdigit() else p for p in re.findall(r"[^.\[\]]+", path))
            target: Any = data
            for part in parents:
                target = target[part]
            if value is MISSING:
                del target[last]
            else:
                target[last] = value
        return data

    return make


@pytest.fixture(scope="session")
def missing() -> str:
    """Stands for the removal of a field in an edit."""
    return MISSING
