"""What comes and goes: the pool's news, and processes that die with units on them."""

from __future__ import annotations

from dataclasses import replace

from nereus.control.effects import Effect, ReleaseBoundary, RetireEndpoints, SpawnDevices
from nereus.control.events import DeviceFailed, EndpointDied, PoolChanged, StepLost
from nereus.control.moving import stop
from nereus.control.phases import (
    Admitted,
    Joining,
    Paused,
    Planning,
    Restoring,
    Saving,
    Settling,
    Starting,
    Transitioning,
    Waiting,
)
from nereus.control.planning import carry_out_admitted, give_up, replan, wait
from nereus.control.regrouping import interrupt, settling
from nereus.control.restoring import is_involved, lost_in_restore, restart
from nereus.control.state import JobState, Result
from nereus.layout.catalog import EndpointId
from nereus.policy.horizon import Signal
from nereus.policy.triggers import Trigger


def pool(before: JobState, state: JobState, event: PoolChanged, now_s: float) -> Result:
    """Start what arrives, end what is gone; whether the plan has to change is the next boundary's question."""
    gone = tuple(before.endpoint_of[device] for device in event.gone if device in before.endpoint_of)
    effects: list[Effect] = []
    if event.arriving:
        effects.append(SpawnDevices(devices=event.arriving))
    if gone:
        effects.append(RetireEndpoints(endpoints=gone))
    hit, reason = _units_on(before, gone), f"the notice of {', '.join(gone)} ran out"
    if isinstance(state.phase, Settling):
        after, more = settling(state, event, now_s)
    elif isinstance(state.phase, Transitioning):
        after, more = _interrupted(state, reason, gone, now_s)
    elif isinstance(state.phase, Restoring) and is_involved(state, gone):
        after, more = lost_in_restore(state, reason, now_s)
    elif hit:
        after, more = _recover(state, reason, hit, now_s, holding=False)
    elif gone and isinstance(state.phase, Waiting) and state.is_bare and state.usable and not state.starting:
        after, more = wait(state, now_s)
    elif isinstance(state.phase, Waiting) and not state.may_grow:
        after, more = give_up(state, "the devices that were on their way are gone", now_s)
    else:
        return state, tuple(effects)
    return after, (*effects, *more)


def lost(before: JobState, state: JobState, event: EndpointDied | StepLost, now_s: float) -> Result:
    """A process died, maybe with units on it: go on from the intact ones, or stop with the reason."""
    hit = _units_on(before, (event.endpoint,))
    if event.endpoint in before.endpoint_of.values():
        after, effects = _answer(before, state, event, hit, now_s)
        return after, (RetireEndpoints(endpoints=(event.endpoint,)), *effects)
    return _answer(before, state, event, hit, now_s)


def failed(state: JobState, event: DeviceFailed, now_s: float) -> Result:
    """A device that was to come has not come: the pool is what it was, unless a script waits for it."""
    if isinstance(state.phase, Joining) and event.device in state.phase.devices:
        return stop(state, f"device {event.device}, which the job file lets join, did not start: {event.reason}")
    retire = RetireEndpoints(endpoints=(event.endpoint,))
    if isinstance(state.phase, Waiting) and not state.starting:
        comes = state.is_bare and state.usable
        why = f"device {event.device} did not start: {event.reason}"
        after, effects = wait(state, now_s) if comes else give_up(state, why, now_s)
        return after, (retire, *effects)
    return state, (retire,)


def _answer(before: JobState, state: JobState, event: EndpointDied | StepLost, hit: list[str], now_s: float) -> Result:
    """What a death leads to: recovery where it took units, and the loop's release where it waits for one."""
    waits = isinstance(event, StepLost)
    reason = f"endpoint {event.endpoint} died during {event.during}, with {', '.join(hit) or 'no unit'}"
    if isinstance(state.phase, Settling):
        return settling(state, event, now_s)
    if isinstance(state.phase, Transitioning):
        known = event.endpoint not in before.endpoint_of.values()
        return (state, ()) if known else _interrupted(state, reason, (event.endpoint,), now_s)
    if isinstance(state.phase, Restoring):
        return lost_in_restore(state, reason, now_s) if is_involved(state, (event.endpoint,)) else (state, ())
    if hit:
        return _recover(state, reason, hit, now_s, holding=waits)
    if not waits:
        return state, ()
    if isinstance(state.phase, Planning | Waiting):
        return replace(state, phase=replace(state.phase, holding=True)), ()
    if isinstance(state.phase, Admitted):
        return carry_out_admitted(state, state.phase, now_s)
    return state, asked_again(state)


def _units_on(state: JobState, endpoints: tuple[EndpointId, ...]) -> list[str]:
    return sorted(str(emu.unit) for emu in state.bound if set(endpoints) & set(emu.endpoints))


def _recover(state: JobState, reason: str, hit: list[str], now_s: float, *, holding: bool) -> Result:
    """Units are gone: ask for a plan from the intact ones at once. Without an intact copy, go back to the checkpoint."""
    # The loop waits while a script's devices start, while its state is saved, and while the last loss is planned for.
    waits = (
        holding
        or isinstance(state.phase, Joining | Paused | Saving)
        or (isinstance(state.phase, Planning | Waiting) and state.phase.holding)
    )
    bare = [name for name, emus in state.emus.items() if not emus]
    if bare:
        why = f"{reason}; no intact copy of {', '.join(bare)} is left"
        return restart(state, (Trigger(Signal.POOL, True, why),), now_s, holding=waits)
    return replan(state, (Trigger(Signal.POOL, True, reason),), None, holding=waits, recovering=True)


def _interrupted(state: JobState, reason: str, gone: tuple[EndpointId, ...], now_s: float) -> Result:
    """Endpoints are gone while state moves: if they take part in it, it ends."""
    moving = state.phase
    assert isinstance(moving, Transitioning)
    involved = not set(gone).isdisjoint(moving.carrying.task.endpoints)
    return interrupt(state, reason, now_s) if involved else (state, ())


def asked_again(state: JobState) -> tuple[Effect, ...]:
    """The loop asks a second time, after a restart: it is released unless state is on the move, which ends in a release."""
    held = isinstance(state.phase, Planning) and state.phase.holding
    moves = isinstance(state.phase, Starting | Joining | Transitioning | Settling | Saving | Restoring)
    waits = held or moves or isinstance(state.phase, Paused | Waiting)
    return () if waits else (ReleaseBoundary(release=state.release),)
