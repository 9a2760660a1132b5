"""What is true now: an event taken into the state, deciding nothing."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from nereus.control.events import BoundaryReached, DeviceFailed, DeviceReady, EndpointDied, Event, PoolChanged, StepLost
from nereus.control.intact import survivors
from nereus.control.restoring import with_pool_ahead
from nereus.control.state import JobState
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId
from nereus.planner.pricing import Lengths


def mirror(state: JobState, event: Event) -> JobState:
    """Take in what is true now, deciding nothing."""
    match event:
        case DeviceReady():
            return replace(
                state,
                endpoint_of={**state.endpoint_of, event.device: event.endpoint},
                starting=state.starting - {event.device},
                broken=state.broken - {event.device},
                flops={**state.flops, event.device: event.peak_flops},
            )
        case DeviceFailed():
            return replace(state, starting=state.starting - {event.device})
        case PoolChanged():
            state = with_pool_ahead(state, max(event.ahead - state.pool_ahead, 0))
            return replace(
                state,
                pool_ended=event.ended,
                broken=state.broken.difference(event.gone),
                endpoint_of={d: e for d, e in state.endpoint_of.items() if d not in event.gone},
                starting=(state.starting | set(event.arriving)).difference(event.gone, state.endpoint_of),
                leaving={d: s for d, s in {**state.leaving, **event.leaving}.items() if d not in event.gone},
                emus=_intact(state, {state.endpoint_of[d] for d in event.gone if d in state.endpoint_of}),
            )
        case EndpointDied() | StepLost():
            gone = {device for device, endpoint in state.endpoint_of.items() if endpoint == event.endpoint}
            return replace(
                state,
                endpoint_of={d: e for d, e in state.endpoint_of.items() if d not in gone},
                leaving={d: s for d, s in state.leaving.items() if d not in gone},
                broken=state.broken.union(gone).difference(state.leaving),
                emus=_intact(state, {event.endpoint}),
                mid_step=state.mid_step or isinstance(event, StepLost),
            )
        case BoundaryReached():
            recent = (*state.recent_s, event.report.step_s)[-max(state.config.policy.canary_steps, 1) :]
            return _learn(
                replace(state, step=event.report.step, report=event.report, recent_s=recent, mid_step=False, followed=None)
            )
    return state


def _intact(state: JobState, dead: Set[EndpointId]) -> dict[str, tuple[Emu, ...]]:
    """The EMUs of each model-stage without those that lost a rank."""
    return {name: survivors(emus, dead) for name, emus in state.emus.items()}


def _learn(state: JobState) -> JobState:
    """Calibrate the cost model on the stage times of the last step (paper, section 4.2)."""
    report = state.report
    assert report is not None
    responses = Lengths(report.response_tokens_mean, report.response_tokens_max)
    peak = max(report.peak_bytes.values(), default=0)
    return replace(state, learnt=state.pricing.learn(state.plan, responses, report.stage_s, peak))
