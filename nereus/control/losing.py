"""What comes and goes: the pool's news, and processes that die with units on them."""

from __future__ import annotations

from dataclasses import replace

from nereus.control.effects import Effect, ReleaseBoundary, RetireEndpoints, SpawnDevices
from nereus.control.events import DeviceFailed, EndpointDied, PoolChanged, StepLost
from nereus.control.moving import stop
from nereus.control.phases import Admitted, Joining, Planning, Starting, Steady, Transitioning
from nereus.control.planning import carry_out_admitted, replan
from nereus.control.state import JobState, Result
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from nereus.policy.horizon import Signal
from nereus.policy.triggers import Trigger


def pool(before: JobState, state: JobState, event: PoolChanged) -> Result:
    """Start what arrives, end what is gone; whether the plan has to change is the next boundary's question."""
    gone = tuple(before.endpoint_of[device] for device in event.gone if device in before.endpoint_of)
    effects: list[Effect] = []
    if event.arriving:
        effects.append(SpawnDevices(devices=event.arriving))
    if gone:
        effects.append(RetireEndpoints(endpoints=gone))
    hit = _units_on(before, gone)
    if hit or (gone and isinstance(state.phase, Transitioning)):
        after, more = _recover(state, f"the notice of {', '.join(gone)} ran out", hit, holding=False)
        return after, (*effects, *more)
    return state, tuple(effects)


def lost(before: JobState, state: JobState, event: EndpointDied | StepLost, now_s: float) -> Result:
    """A process died, maybe with units on it: go on from the intact ones, or stop with the reason."""
    hit = _units_on(before, (event.endpoint,))
    if event.endpoint in before.endpoint_of.values():
        after, effects = _answer(before, state, event, hit, now_s)
        return after, (RetireEndpoints(endpoints=(event.endpoint,)), *effects)
    return _answer(before, state, event, hit, now_s)


def failed(state: JobState, event: DeviceFailed) -> Result:
    """A device that was to come has not come: the pool is what it was, unless a script waits for it."""
    if isinstance(state.phase, Joining) and event.device in state.phase.devices:
        return stop(state, f"device {event.device}, which the job file lets join, did not start: {event.reason}")
    return state, (RetireEndpoints(endpoints=(event.endpoint,)),)


def _answer(before: JobState, state: JobState, event: EndpointDied | StepLost, hit: list[str], now_s: float) -> Result:
    """What a death leads to: recovery where it took units, and the loop's release where it waits for one."""
    waits = isinstance(event, StepLost)
    known = event.endpoint not in before.endpoint_of.values()
    if waits and known and isinstance(state.phase, Transitioning):
        return state, ()
    if hit or isinstance(state.phase, Transitioning):
        reason = f"endpoint {event.endpoint} died during {event.during}, with {', '.join(hit) or 'no unit'}"
        return _recover(state, reason, hit, holding=waits)
    if not waits:
        return state, ()
    if isinstance(state.phase, Planning):
        return replace(state, phase=replace(state.phase, holding=True)), ()
    if isinstance(state.phase, Admitted):
        return carry_out_admitted(state, state.phase, now_s)
    return state, asked_again(state)


def _units_on(state: JobState, endpoints: tuple[EndpointId, ...]) -> list[str]:
    return sorted(str(emu.unit) for emu in state.bound if set(endpoints) & set(emu.endpoints))


def _recover(state: JobState, reason: str, hit: list[str], *, holding: bool) -> Result:
    """Units are gone: ask for a plan from the intact ones at once. Without an intact copy, or half-way, the job stops."""
    bare = [name for name, emus in state.emus.items() if not _is_whole(emus)]
    if bare or isinstance(state.phase, Transitioning) or not isinstance(state.phase, Steady | Planning | Admitted):
        why = f"no intact copy of {', '.join(bare)} is left" if bare else "state was moving"
        return stop(state, f"{reason}; {why}; run the job again, and look for what ended the process")
    after, effects = replan(state, (Trigger(Signal.POOL, True, reason),), None)
    assert isinstance(after.phase, Planning)
    return replace(after, phase=replace(after.phase, holding=holding, recovering=True)), effects


def _is_whole(emus: tuple[Emu, ...]) -> bool:
    """Whether these replicas hold all state of their model-stage: under ZeRO-1 each has a part of the optimizer's."""
    return bool(emus) and len({emu.optimizer.part for emu in emus}) == emus[0].optimizer.parts


def asked_again(state: JobState) -> tuple[Effect, ...]:
    """The loop asks a second time, after a restart: it is released unless state is on the move, which ends in a release."""
    held = isinstance(state.phase, Planning) and state.phase.holding
    waits = held or isinstance(state.phase, Starting | Joining | Transitioning)
    return () if waits else (ReleaseBoundary(release=state.release),)
