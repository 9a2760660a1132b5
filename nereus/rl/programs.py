"""The stage programs: what a worker can compute on a unit. One process serves every model-stage that is put on it.

    Generate -> Generated     Score -> log-probabilities     Accumulate -> Prepared     Apply -> nothing

They keep nothing between calls but the gradients that `accumulate` leaves for `apply`, which are gone at the boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from nereus.errors import StaleUnitError
from nereus.layout.catalog import UnitId
from nereus.rl.generate import Generate, Generated, generate
from nereus.rl.gradients import Gradients
from nereus.rl.train import Accumulate, Apply, Prepared, Score, accumulate, apply, is_applied, score
from nereus.rl.view import UnitView

Request = Generate | Score | Accumulate | Apply
Result = Generated | Prepared | torch.Tensor | None


@dataclass(slots=True)
class Transients:
    """Gradients between the two halves of an update, by unit."""

    gradients: dict[UnitId, Gradients] = field(default_factory=dict)

    def drop(self) -> None:
        """Free everything: what is left at a boundary was never applied."""
        for gradients in self.gradients.values():
            gradients.free()
        self.gradients.clear()


def run(view: UnitView, request: Request, transients: Transients) -> Result:
    """Run one request on one rank. Every rank of the unit must be called with an equal request; one of them answers."""
    unit = view.emu.unit
    match request:
        case Generate():
            return generate(view, request)
        case Score():
            return score(view, request)
        case Accumulate():
            if unit in transients.gradients:
                transients.gradients.pop(unit).free()
            transients.gradients[unit], prepared = accumulate(view, request)
            return prepared if view.answers else None
        case Apply():
            _apply(view, request, transients.gradients.pop(unit, None))
            return None


def _apply(view: UnitView, request: Apply, gradients: Gradients | None) -> None:
    """Apply and free the gradients; an update that was applied before needs none."""
    try:
        if gradients is None and not is_applied(view, request):
            unit = view.emu.unit
            raise StaleUnitError(f"unit {unit} has no gradients for update {request.update}: accumulate comes first")
        if gradients is not None:
            apply(view, request, gradients)
    finally:
        if gradients is not None:
            gradients.free()
