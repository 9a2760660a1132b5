"""From units and target plans to the transition that is carried out: one path for policy, core and `nereus transition`.

    Change -> transition DAG -> order and streams that fit, quickest dispatch -> Transition, MemoryCheck
                 ^-- the next way, if there is one, where memory refuses

Pure and without randomness: the planner and the core come to the same transition.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from nereus.emu.unit import Emu
from nereus.transition.dag import Change
from nereus.transition.estimate import LinkRates
from nereus.transition.feasibility import MemoryCheck, Pace, fitted
from nereus.transition.ops import Transition

MAX_FITTED = 6
"""Ways of a change that are checked against memory: each may take a search. Most changes have one."""


def planned(
    change: Change, standing: Iterable[Emu], usable_bytes: float, rates: LinkRates
) -> tuple[Transition, MemoryCheck]:
    """The first way of a change that fits, with its check; if none does, the first way and what it lacks.

    `standing` are all EMUs that are there before it, those of other model-stages too. Raises LayoutError if no way has an
    order.
    """
    there = tuple(standing)
    refused: tuple[Transition, MemoryCheck] | None = None
    for transition in islice(change.transitions(), MAX_FITTED):
        found, check = fitted(transition, there, change.states, usable_bytes, Pace(rates, change.node_of))
        if check.violation is None:
            return found, check
        refused = refused or (found, check)
    assert refused is not None
    return refused
