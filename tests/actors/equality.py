"""How far a run is from the single-process reference, or from another run; and that it is not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.actors.jobs import Run
from tests.reference import Trained

Record = Callable[[str, object], None]
"""pytest's record_property."""


def differences(found: Run, expected: Trained) -> dict[str, float]:
    """The largest differences of a run from the reference."""
    updates = found.job.grpo.updates_per_step
    return {
        "loss": relative(found.losses, expected.step_losses(updates)),
        "kl": relative([step.kl for step in found.steps], expected.step_kls(updates)),
        "grad_norm": relative(found.grad_norms, expected.step_grad_norms(updates)),
        "parameters": furthest(found.parameters, expected.parameters),
    }


def assert_equal(found: dict[str, float], record: Record, losses: float = 1e-10, parameters: float = 1e-9) -> None:
    """Within the bounds of the project's goal."""
    for name, value in found.items():
        record(name, value)
    assert max(found["loss"], found["kl"], found["grad_norm"]) <= losses, found
    assert found["parameters"] <= parameters, found


def relative(found: list[float], expected: list[float]) -> float:
    assert len(found) == len(expected)
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def furthest(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert found.keys() == expected.keys()
    return max(float((found[name].double() - expected[name]).abs().max()) for name in expected)
