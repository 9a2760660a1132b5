"""When a step that runs is given up, since devices of its plan leave before its end.

A notice can be shorter than a step. A device that is lost in the middle of one takes the step along, and, where optimizer
state is sharded over replicas, the last copy of a part of it. Given up in time, the step is lost as well, but state moves
off the devices while they are there (paper, section 4.3: revocation triggers the urgent path, which preserves state).
"""

from __future__ import annotations

MOVING_S = 10.0
"""Seconds before devices are gone at which the plan must be on its way off them, where nothing shorter is predicted: proofs
and moving took 1 to 4 s for models of 8B to 70B, and seldom more than these. Later, the loss cuts the transition off, which
costs a return to intact units or to a checkpoint; earlier, steps are given up that would have ended, which costs as much.
Longer predictions change nothing: those of links that were not measured yet are many times too long."""

SAFETY = 2.0
"""Predicted seconds of a transition are within this factor of what it takes, once rates of links were learnt."""


def give_up_at(
    now_s: float, began_s: float, gone_s: float, expected_s: float | None, l_tran_s: float | None = None
) -> float:
    """The time at which a running step is given up, if it has not ended by then.

    At once if it is expected (`expected_s`, from its begin) to last longer than the devices stay: each second more is lost.
    Else at the last moment at which there is time to move: `l_tran_s` is predicted for the admitted transition. None for
    either: nothing is known of it.
    """
    moving_s = MOVING_S if l_tran_s is None else min(SAFETY * l_tran_s, MOVING_S)
    last = max(gone_s - moving_s, now_s)
    return last if expected_s is None or began_s + expected_s <= gone_s else now_s
