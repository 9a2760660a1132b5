"""A save on its way: shares are written, then sealed; the boundary at which it began goes on.

StateWritten of all -> SealState -> StateSealed -> periodic: the boundary    needed: a plan to start anew on, or the wait
"""

from __future__ import annotations

from dataclasses import replace

from nereus.control.checkpoint import Checkpoint, Saved, digests_of
from nereus.control.effects import Publish, SealState
from nereus.control.events import Event, OpFailed, StateSealed, StateWritten
from nereus.control.phases import Saving, Steady
from nereus.control.planning import boundary, unplanned
from nereus.control.state import JobState, Result
from nereus.errors import DigestMismatch


def saving(state: JobState, event: Event, now_s: float) -> Result:
    """One fact of a save."""
    phase = state.phase
    assert isinstance(phase, Saving)
    match event:
        case StateWritten(tag=phase.tag, endpoint=who) if who in phase.waiting:
            phase = replace(phase, waiting=phase.waiting - {who}, written=(*phase.written, event))
            after = replace(state, phase=phase)
            return (after, ()) if phase.waiting else _seal(after, phase, now_s)
        case StateSealed(tag=phase.tag) if not phase.waiting:
            return _whole(state, phase, event.folder, now_s)
        case OpFailed(endpoint=who, op=op) if op == f"save {phase.tag}" and who in phase.waiting:
            return _ended(state, phase, f"{who}: {event.error}", now_s)
        case OpFailed(op=op) if op == f"seal {phase.tag}" and not phase.waiting:
            return _ended(state, phase, event.error, now_s)
    return state, ()


def seal_of(state: JobState, saving: Saving) -> SealState:
    """What makes a checkpoint of the shares. Raises DigestMismatch where they are not the whole state."""
    digests = digests_of([entry for part in saving.written for entry in part.digests], state.config.states)
    return SealState(tag=saving.tag, step=state.step, written=saving.written, digests=digests)


def _seal(state: JobState, saving: Saving, now_s: float) -> Result:
    try:
        return state, (seal_of(state, saving),)
    except DigestMismatch as error:
        return _ended(state, saving, str(error), now_s)


def _whole(state: JobState, saving: Saving, folder: str, now_s: float) -> Result:
    checkpoint = Checkpoint(
        folder=folder,
        step=state.step,
        digests=seal_of(state, saving).digests,
        num_bytes=_bytes(saving),
        seconds=now_s - saving.began_s,
    )
    return _ended(replace(state, saved=checkpoint, num_restarts=0), saving, "", now_s)


def _ended(state: JobState, saving: Saving, error: str, now_s: float) -> Result:
    """The boundary goes on, with the checkpoint or, if it failed, without it."""
    folder = state.saved.folder if state.saved is not None and not error else None
    told = Publish(
        news=Saved(
            step=state.step,
            reason=saving.reason,
            folder=folder,
            num_bytes=_bytes(saving),
            seconds=now_s - saving.began_s,
            error=error,
        )
    )
    if saving.then is None:
        after, effects = boundary(replace(state, phase=Steady()), now_s)
    else:
        after, effects = unplanned(replace(state, phase=saving.then), saving.why, now_s)
    return after, (told, *effects)


def _bytes(saving: Saving) -> int:
    return sum(part.num_bytes for part in saving.written)
