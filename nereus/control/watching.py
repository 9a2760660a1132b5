"""What a boundary looks at: the job as it was observed, against what was true at the last replan (paper, section 4.1).

state -> Observed, Reference -> triggers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nereus.control.state import JobState
from nereus.planner.experience import FIRST_LOOK, LOOK_STEPS
from nereus.policy.triggers import Deltas, Observed, Reference, Trigger, triggers


def first_reference(state: JobState) -> Reference:
    """What the first plan was chosen by: efficiencies as assumed where none was measured, so that a job that is found to run
    otherwise is planned anew."""
    chosen_by = {**state.pricing.assumed(), **state.pricing.efficiencies()}
    return Reference(state.mean_tokens, frozenset(state.usable), efficiencies=chosen_by)


def crossings(state: JobState) -> tuple[Trigger, ...]:
    """Every signal that has left its reference."""
    if state.reference is None:
        return ()
    snapshot = state.snapshot
    # Devices that arrived together become ready one by one: the pool counts as changed when the last one is.
    growing = bool(state.starting) and set(state.usable) >= state.reference.pool
    observed = Observed(
        response_tokens=state.mean_tokens,
        pool=state.reference.pool if growing else frozenset(state.usable),
        used=state.plan.devices,
        predicted_bytes=snapshot.peak_bytes(),
        usable_bytes=snapshot.pricing.usable_bytes,
        efficiencies=(looked := _looked_at(state)),
        spent_s=state.pricing.spent() if looked else {},
    )
    policy = state.config.policy
    return triggers(observed, state.reference, Deltas(policy.delta_length, policy.delta_compute, policy.delta_communication))


def _looked_at(state: JobState) -> Mapping[str, float]:
    """The efficiencies, at the steps at which they are looked at."""
    looks = state.step == FIRST_LOOK or state.step % LOOK_STEPS == 0
    return state.pricing.efficiencies() if looks else {}


def with_new_classes(state: JobState) -> JobState:
    """References of efficiencies that are seen for the first time; the others stay."""
    if state.reference is None or not (found := _looked_at(state)):
        return state
    return replace(state, reference=replace(state.reference, efficiencies={**found, **state.reference.efficiencies}))


def reference_now(state: JobState) -> Reference:
    """What drift is measured from, from now on."""
    snapshot = state.snapshot
    short = snapshot.peak_bytes() > snapshot.pricing.usable_bytes
    return Reference(state.mean_tokens, frozenset(state.usable), short, snapshot.pricing.efficiencies())
