"""Saves: when one is due or needed, and how it begins. The loop waits at its boundary until the checkpoint is whole.

due: so many steps since the last one        needed: no transition leads on, and the plan in force cannot
"""

from __future__ import annotations

from dataclasses import replace

from nereus.control.effects import SaveState
from nereus.control.phases import Planning, Saving, Steady
from nereus.control.state import JobState, Result
from nereus.layout.catalog import EndpointId
from nereus.layout.saving import shares
from nereus.policy.horizon import Signal

MEMORY_SAVE_STEPS = 10
"""Steps between two saves for one lasting shortage of memory: it is a prediction, and a job that goes on for want of another
plan must not write its state at every boundary."""


def is_due(state: JobState) -> bool:
    """Whether the job saves at this boundary because so many steps have passed; planned or admitted changes come first."""
    rule = state.config.checkpoint
    if rule is None or rule.every_steps is None or not isinstance(state.phase, Steady):
        return False
    return state.step - state.save_step >= rule.every_steps


def is_needed(state: JobState, planning: Planning) -> bool:
    """Whether the state has to be on disk before the job waits, or goes on with what may fail."""
    if state.config.checkpoint is None or state.is_bare or not is_at_boundary(state, planning):
        return False
    if state.saved is not None and state.saved.step == state.step:
        return False
    revoked = planning.recovering or any(t.urgent and t.signal is Signal.POOL for t in planning.triggers)
    tried = state.num_saves > 0 and state.step - state.save_step < MEMORY_SAVE_STEPS
    return state.save_step < state.step and (revoked or not tried)


def is_at_boundary(state: JobState, planning: Planning) -> bool:
    """Whether the units stand as a boundary left them, and stay so."""
    return planning.holding and not state.mid_step


def begin_save(state: JobState, reason: str, then: Planning | None, now_s: float, why: str = "") -> Result:
    """Have every endpoint that has a share write it; `then` is what found no plan, and `why`."""
    tag = f"s{state.num_saves + 1}"
    phase = Saving(tag=tag, reason=reason, waiting=writers(state), began_s=now_s, then=then, why=why)
    after = replace(state, phase=phase, num_saves=state.num_saves + 1, save_step=state.step)
    return after, (save_of(after, phase),)


def save_of(state: JobState, saving: Saving) -> SaveState:
    """What the endpoints of a save are asked for, until all have answered."""
    return SaveState(tag=saving.tag, emus=state.bound, endpoints=tuple(sorted(saving.waiting)))


def writers(state: JobState) -> frozenset[EndpointId]:
    """The endpoints that have a share of a checkpoint of the units in force."""
    return frozenset(shares(state.config.states, state.bound))
