"""When a step that runs is given up, since devices of its plan leave before its end.

A notice can be shorter than a step. A device that is lost in the middle of one takes the step along, and, where optimizer
state is sharded over replicas, the last copy of a part of it. Given up in time, the step is lost as well, but state moves
off the devices while they are there (paper, section 4.3: revocation triggers the urgent path, which preserves state).
"""

from __future__ import annotations

MOVING_S = 15.0
"""Seconds before devices are gone at which the plan must be on its way off them: planning, proofs and moving took 1 to 4 s
for models of 8B to 70B, and seldom more than ten. Later, the loss cuts the transition off; earlier, steps are given up that
would have ended: with 30, one of 105 s ten seconds before its end."""


def give_up_at(now_s: float, began_s: float, gone_s: float, expected_s: float | None) -> float:
    """The time at which a running step is given up, if it has not ended by then.

    At once if it is expected (`expected_s`, from its begin) to last longer than the devices stay: each second more is lost.
    Else at the last moment at which there is time to move. None: nothing is known of how long a step takes.
    """
    last = max(gone_s - MOVING_S, now_s)
    return last if expected_s is None or began_s + expected_s <= gone_s else now_s
