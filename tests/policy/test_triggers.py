"""Each trigger at its threshold and on both sides of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nereus.policy.horizon import Signal
from nereus.policy.triggers import Deltas, Observed, Reference, Trigger, triggers
from nereus.spec.policy import DELTA_COMMUNICATION, DELTA_COMPUTE, DELTA_LENGTH

POOL = frozenset(range(8))
REFERENCE = Reference(response_tokens=100.0, pool=POOL)
CALM = Observed(response_tokens=100.0, pool=POOL, used=POOL, predicted_bytes=900, usable_bytes=900.0)


def found(observed: Observed, reference: Reference = REFERENCE) -> list[tuple[Signal, bool]]:
    return [(trigger.signal, trigger.urgent) for trigger in triggers(observed, reference)]


def only(observed: Observed, reference: Reference = REFERENCE) -> Trigger:
    (trigger,) = triggers(observed, reference)
    return trigger


def test_nothing_triggers_while_nothing_changes() -> None:
    assert found(CALM) == []


# --- response length ---------------------------------------------------------------------------------------------------


def test_delta_of_length_is_that_of_the_paper() -> None:
    assert DELTA_LENGTH == 0.30


@pytest.mark.parametrize("tokens", [131.0, 130.001, 69.0, 69.999, 250.0, 0.0])
def test_length_triggers_beyond_thirty_per_cent_either_way(tokens: float) -> None:
    assert found(replace(CALM, response_tokens=tokens)) == [(Signal.LENGTH, False)]


@pytest.mark.parametrize("tokens", [129.999, 115.0, 100.0, 85.0, 70.001])
def test_length_does_not_trigger_within_thirty_per_cent(tokens: float) -> None:
    assert found(replace(CALM, response_tokens=tokens)) == []


@pytest.mark.parametrize(("before", "now"), [(100.0, 130.0), (100.0, 70.0), (10.0, 13.0), (10.0, 7.0)])
def test_length_does_not_trigger_at_exactly_thirty_per_cent(before: float, now: float) -> None:
    """Only "more than a relative threshold" does (paper, section 4.1)."""
    assert found(replace(CALM, response_tokens=now), replace(REFERENCE, response_tokens=before)) == []


def test_length_is_compared_with_the_reference_and_not_with_the_last_step() -> None:
    """A slow drift of 5 % a step crosses when it has left the reference, and again only after the reference was reset."""
    reference, crossings = REFERENCE, []
    for step in range(1, 21):
        tokens = 100 * 1.05**step
        if found(replace(CALM, response_tokens=tokens), reference):
            crossings.append(step)
            reference = replace(reference, response_tokens=tokens)
    assert crossings == [6, 12, 18]


def test_length_triggers_beyond_another_threshold_where_one_is_declared() -> None:
    drifting = replace(CALM, response_tokens=140.0)
    assert [t.signal for t in triggers(drifting, REFERENCE, Deltas(length=0.39))] == [Signal.LENGTH]
    assert triggers(drifting, REFERENCE, Deltas(length=0.41)) == ()


def test_length_without_a_reference_does_not_trigger() -> None:
    assert found(CALM, replace(REFERENCE, response_tokens=0.0)) == []


def test_reason_of_a_length_trigger_has_its_numbers() -> None:
    assert only(replace(CALM, response_tokens=140.0)).reason == "responses went from 100.0 to 140.0 tokens (+40%)"


# --- memory ------------------------------------------------------------------------------------------------------------


def test_memory_triggers_urgently_one_byte_above_what_is_usable() -> None:
    assert found(replace(CALM, predicted_bytes=901)) == [(Signal.MEMORY, True)]


def test_memory_does_not_trigger_at_what_is_usable() -> None:
    assert found(replace(CALM, predicted_bytes=900)) == []
    assert found(replace(CALM, predicted_bytes=899)) == []


def test_memory_triggers_whatever_the_references_are() -> None:
    """A violation is a hard trigger: it has no reference, so it comes again as long as it lasts."""
    tight = replace(CALM, predicted_bytes=1000)
    reset = Reference(tight.response_tokens, tight.pool)
    assert found(tight, reset) == found(tight, reset) == [(Signal.MEMORY, True)]


def test_reason_of_a_memory_trigger_has_its_numbers() -> None:
    tight = replace(CALM, predicted_bytes=3 << 20, usable_bytes=float(2 << 20))
    assert "3.0 MiB of 2.0 usable" in only(tight).reason


# --- pool --------------------------------------------------------------------------------------------------------------


def test_pool_triggers_when_a_device_comes() -> None:
    assert found(replace(CALM, pool=POOL | {8})) == [(Signal.POOL, False)]


def test_pool_triggers_urgently_when_a_used_device_leaves() -> None:
    trigger = only(replace(CALM, pool=POOL - {3, 5}))
    assert (trigger.signal, trigger.urgent) == (Signal.POOL, True)
    assert trigger.reason == "the pool went from 8 to 6 devices; the plan uses [3, 5], which leave"


def test_pool_triggers_without_urgency_when_an_unused_device_leaves() -> None:
    assert found(replace(CALM, pool=POOL - {7}, used=POOL - {7})) == [(Signal.POOL, False)]


def test_pool_triggers_when_one_device_takes_the_place_of_another() -> None:
    assert found(replace(CALM, pool=POOL - {7} | {8})) == [(Signal.POOL, True)]
    assert found(replace(CALM, pool=POOL - {7} | {8}, used=frozenset(range(4)))) == [(Signal.POOL, False)]


def test_pool_change_does_not_trigger_again_after_the_reference_was_reset() -> None:
    grown = replace(CALM, pool=POOL | {8})
    assert found(grown, Reference(100.0, grown.pool)) == []


def test_used_device_that_leaves_triggers_as_long_as_the_plan_uses_it() -> None:
    """The plan cannot go on, whatever became of the last replan."""
    shrunk = replace(CALM, pool=POOL - {3})
    assert found(shrunk, Reference(100.0, shrunk.pool)) == [(Signal.POOL, True)]


# --- together ----------------------------------------------------------------------------------------------------------


def test_signals_that_cross_together_are_all_there_urgent_ones_first() -> None:
    observed = replace(CALM, pool=POOL | {8}, response_tokens=200.0, predicted_bytes=1000)
    assert found(observed) == [(Signal.MEMORY, True), (Signal.POOL, False), (Signal.LENGTH, False)]
    losing = replace(observed, pool=POOL - {0})
    assert [urgent for _, urgent in found(losing)] == [True, True, False]


def test_every_trigger_gives_a_reason() -> None:
    observed = replace(CALM, pool=POOL - {0}, response_tokens=200.0, predicted_bytes=1000)
    assert all(trigger.reason for trigger in triggers(observed, REFERENCE))


# --- efficiencies ------------------------------------------------------------------------------------------------------


def at(**values: float) -> dict[str, float]:
    """Efficiencies by signal and class: compute_gemm -> compute/gemm."""
    return {name.replace("_", "/", 1): value for name, value in values.items()}


@pytest.mark.parametrize(
    ("name", "signal", "delta"),
    [
        ("compute_gemm", Signal.COMPUTE, DELTA_COMPUTE),
        ("communication_reduce", Signal.COMMUNICATION, DELTA_COMMUNICATION),
    ],
)
@pytest.mark.parametrize("way", [-1, 1])
def test_efficiency_triggers_when_it_differs_by_more_than_its_delta(
    name: str, signal: Signal, delta: float, way: int
) -> None:
    """Paper, section 4.1: a drifting signal triggers when it differs from its reference value by more than delta_x."""
    reference = replace(REFERENCE, efficiencies=at(**{name: 0.4}))
    for beyond, expected in ((-0.01, []), (0.01, [(signal, False)])):
        now = 0.4 * (1 + way * (delta + beyond))
        observed = replace(CALM, efficiencies=at(**{name: now}), spent_s=at(**{name: 3.0}))
        assert found(observed, reference) == expected


def test_class_that_is_seen_for_the_first_time_is_no_drift() -> None:
    reference = replace(REFERENCE, efficiencies=at(compute_gemm=0.4))
    calm = replace(CALM, spent_s=at(compute_gemm=1.0, compute_attention=1.0))
    assert found(replace(calm, efficiencies=at(compute_gemm=0.4, compute_attention=0.01)), reference) == []
    assert found(replace(calm, efficiencies=at(compute_attention=0.01)), reference) == []


@given(
    st.dictionaries(
        st.sampled_from(["compute/a", "compute/b", "compute/c", "communication/d"]),
        st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.floats(0.0, 100.0)),
        min_size=1,
    )
)
def test_efficiency_of_a_signal_is_the_peak_time_of_its_work_over_the_time_it_takes(
    classes: dict[str, tuple[float, float, float]],
) -> None:
    """Paper, section 4.1: achieved efficiency is ideal over actual time, of all computation together."""
    observed = replace(
        CALM,
        efficiencies={name: now for name, (_, now, _) in classes.items()},
        spent_s={name: seconds for name, (_, _, seconds) in classes.items()},
    )
    reference = replace(REFERENCE, efficiencies={name: before for name, (before, _, _) in classes.items()})
    compute = [values for name, values in classes.items() if name.startswith("compute/")]
    now_s = sum(seconds for _, _, seconds in compute)
    ideal_s = sum(seconds * now for _, now, seconds in compute)
    before_s = sum(seconds * now / before for before, now, seconds in compute)
    change = (ideal_s / now_s) / (ideal_s / before_s) - 1 if now_s else 0.0
    assume(abs(abs(change) - DELTA_COMPUTE) > 1e-6)
    assert ((Signal.COMPUTE, False) in found(observed, reference)) == (abs(change) > DELTA_COMPUTE)


def test_class_counts_by_the_seconds_that_the_step_spends_in_it() -> None:
    reference = replace(REFERENCE, efficiencies=at(compute_gemm=0.4, compute_attention=0.2))
    halved = replace(CALM, efficiencies=at(compute_gemm=0.4, compute_attention=0.1))
    assert found(replace(halved, spent_s=at(compute_gemm=9.0, compute_attention=1.0)), reference) == []
    trigger = only(replace(halved, spent_s=at(compute_gemm=1.0, compute_attention=4.0)), reference)
    assert (trigger.signal, trigger.reason) == (Signal.COMPUTE, "the compute efficiency has changed by -40% over 2 classes")


def test_deltas_are_those_of_the_policy() -> None:
    reference = replace(REFERENCE, efficiencies=at(compute_gemm=0.4))
    slower = replace(CALM, efficiencies=at(compute_gemm=0.3), spent_s=at(compute_gemm=1.0))
    assert triggers(slower, reference, Deltas(compute=0.3)) == ()
    assert triggers(slower, reference, Deltas(compute=0.2)) != ()
