"""Memory over a transition against an independent replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product

import pytest

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.transition.dag import transition_dag
from nereus.transition.feasibility import MemoryViolation, check_memory
from nereus.transition.ops import BUCKET_BYTES, Op, Transition
from tests.builders import (
    ENDPOINT_OF,
    make_emus,
    make_model,
    make_plan,
    make_state,
)
from tests.layout.bounds import held_bytes
from tests.transition.scenarios import current_emus, target_plan
from tests.transition.weighing import buffered

TRAIN, GENERATE = "actor_training", "actor_generation"
STATE = make_state(make_model(tied=False))
STATES = {TRAIN: make_state(make_model(tied=False), optimizer=True), GENERATE: STATE}
PLENTY = 1e12
ROWS = CanonicalTensor("rows", Kind.PARAMETER, (12, 5), "float32", Place.LAYER, 0, 0, (Segment(12),))
SMALL = StateSpec((ROWS,), 1)
"""One tensor of 12 rows of 20 bytes."""
BEFORE = ("dp1", "dp3", "tp2", "tp2 dp2", "pp2 dp2", "tp2 pp2", "tp4 dp2")
AFTER = ("dp2", "tp2 dp2", "tp2 pp2", "pp4", "tp4")
PAIRS = list(product(BEFORE, AFTER))


def transition_of(
    current: Mapping[str, tuple[Emu, ...]],
    targets: Mapping[str, StagePlan],
    states: Mapping[str, StateSpec] = STATES,
    *,
    bucket_bytes: int = BUCKET_BYTES,
) -> Transition:
    return transition_dag(current, targets, states, ENDPOINT_OF, 1, bucket_bytes=bucket_bytes)


def submitted(transition: Transition) -> list[Op]:
    """The ops as they run: the Destroys that no other op awaits come last."""
    awaited = {name for op in transition.ops for name in op.after}
    held = [op for op in transition.ops if op.frees and not op.makes and op.id not in awaited]
    return [op for op in transition.ops if op not in held] + held


def replayed_peaks(ops: Iterable[Op], current: Iterable[Emu], states: Mapping[str, StateSpec]) -> dict[EndpointId, int]:
    """The largest sum, op by op, of the units that stand on each endpoint and the buffers of the op.

    A unit stands from its making to the end of the transition, whatever reads it, unless a Destroy releases it. A shard that
    changes hands stands once, with the unit that takes it over.
    """
    ops, standing = list(ops), dict[tuple[EndpointId, UnitId], int]()

    def stand(emus: Iterable[Emu]) -> None:
        for emu in emus:
            standing.update({(e, emu.unit): size for e, size in held_bytes(states[emu.stage], [emu]).items()})

    stand(current)
    peaks: Counter[EndpointId] = Counter()
    for op in (None, *ops):
        stand(op.makes if op else ())
        for move in op.handovers if op else ():
            standing[move.source] -= move.num_bytes
        used = buffered(op) if op else Counter[EndpointId]()
        for (endpoint, _), size in standing.items():
            used[endpoint] += size
        peaks |= used
        for site in op.frees if op else ():
            del standing[site]
    return dict(peaks)


# --- the peak ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_peak_is_that_of_a_replay_of_units_and_buffers(before: str, after: str) -> None:
    for seed, bucket_bytes in ((0, BUCKET_BYTES), (1, 700)):
        current = current_emus(before, seed)
        targets = {TRAIN: target_plan(current, after)}
        transition = transition_of({TRAIN: current}, targets, bucket_bytes=bucket_bytes)
        found = check_memory(transition, current, STATES, PLENTY)
        assert found.violation is None
        assert dict(found.peak_bytes) == replayed_peaks(submitted(transition), current, STATES)


@pytest.mark.parametrize(("before", "after"), PAIRS[::4])
def test_peak_counts_model_stages_that_change_and_those_that_stay(before: str, after: str) -> None:
    training, generation = current_emus(before), make_emus("tp2 dp2", stage=GENERATE)
    transition = transition_of({TRAIN: training}, {TRAIN: target_plan(training, after)})
    found = check_memory(transition, (*training, *generation), STATES, PLENTY)
    assert dict(found.peak_bytes) == replayed_peaks(submitted(transition), (*training, *generation), STATES)
    alone = check_memory(transition, training, STATES, PLENTY)
    for emu in generation:
        for endpoint, size in held_bytes(STATE, [emu]).items():
            assert found.peak_bytes[endpoint] == alone.peak_bytes.get(endpoint, 0) + size


def test_peak_of_two_model_stages_that_change_together_is_that_of_the_replay() -> None:
    current = {TRAIN: current_emus("tp2 dp2"), GENERATE: make_emus("dp4", stage=GENERATE)}
    targets = {TRAIN: make_plan("pp2 dp3"), GENERATE: make_plan("tp2 dp1", stage=GENERATE)}
    transition = transition_of(current, targets)
    everyone = [emu for emus in current.values() for emu in emus]
    found = check_memory(transition, everyone, STATES, PLENTY)
    assert dict(found.peak_bytes) == replayed_peaks(submitted(transition), everyone, STATES)


def test_transition_without_operations_peaks_at_what_is_held() -> None:
    current = make_emus("tp2 dp2")
    found = check_memory(Transition((), current), current, STATES, 0.0)
    assert dict(found.peak_bytes) == held_bytes(STATES[TRAIN], current)
    assert found.violation is None


def test_inputs_of_a_split_are_held_with_its_parts() -> None:
    """tp 2 to two replicas: each holds its half and the whole, sends a half and receives a half: 120 + 240 + 120 + 120."""
    current = make_emus("tp2")
    transition = transition_of({TRAIN: current}, {TRAIN: make_plan("dp2")}, {TRAIN: SMALL})
    assert transition.counts == {"Split": 1}
    assert dict(check_memory(transition, current, {TRAIN: SMALL}, PLENTY).peak_bytes) == {"d0.0": 600, "d1.0": 600}


def test_extend_holds_the_unit_and_one_buffer_on_both_ends() -> None:
    current = make_emus("dp1")
    transition = transition_of({TRAIN: current}, {TRAIN: make_plan("dp2")}, {TRAIN: SMALL})
    assert dict(check_memory(transition, current, {TRAIN: SMALL}, PLENTY).peak_bytes) == {"d0.0": 480, "d1.0": 480}


def test_held_destroy_frees_nothing_for_what_moves() -> None:
    """A move from device 0 to 1 while 1 gives up its unit of another stage: both stand until the proof."""
    current = {TRAIN: make_emus("dp1"), GENERATE: make_emus("dp2", stage=GENERATE)}
    targets = {TRAIN: make_plan("dp2"), GENERATE: make_plan("dp1", stage=GENERATE)}
    states = {TRAIN: SMALL, GENERATE: SMALL}
    transition = transition_of(current, targets, states)
    assert [op.primitives for op in transition.held] == [("Destroy",)]
    everyone = [emu for emus in current.values() for emu in emus]
    assert check_memory(transition, everyone, states, PLENTY).peak_bytes["d1.0"] == 240 + 240 + 240


def test_awaited_destroy_frees_its_unit_before_what_waits_for_it() -> None:
    """A replica whose ranks shall lie the other way round goes before the new one comes onto the same devices."""
    current = make_emus("tp2 dp2", devices=(0, 1, 2, 3))
    targets = {TRAIN: make_plan("tp2 dp2", devices=(0, 1, 3, 2))}
    transition = transition_dag({TRAIN: current}, targets, {TRAIN: SMALL}, ENDPOINT_OF, 1, fuse=False)
    assert [op.primitives for op in transition.moving] == [("Destroy",), ("Extend",)]
    peaks = check_memory(transition, current, {TRAIN: SMALL}, PLENTY).peak_bytes
    assert peaks == {"d0.0": 240, "d1.0": 240, "d2.0": 240, "d3.0": 240}


# --- the violation -----------------------------------------------------------------------------------------------------


def test_what_fits_to_the_byte_is_feasible_and_one_byte_less_is_not() -> None:
    current = current_emus("tp2 pp2")
    transition = transition_of({TRAIN: current}, {TRAIN: target_plan(current, "pp4 dp2")})
    most = max(replayed_peaks(submitted(transition), current, STATES).values())
    assert check_memory(transition, current, STATES, most).violation is None
    assert check_memory(transition, current, STATES, most - 1).violation is not None


@pytest.mark.parametrize(("before", "after"), PAIRS[::3])
def test_first_operation_that_does_not_fit_is_named(before: str, after: str) -> None:
    """At every limit: the op at which the peak so far, over the ops up to it, first exceeds the limit."""
    current = current_emus(before)
    transition = transition_of({TRAIN: current}, {TRAIN: target_plan(current, after)})
    order = submitted(transition)
    peaks_after = []
    for count in range(1, len(order) + 1):
        sizes = replayed_peaks(order[:count], current, STATES)
        peaks_after.append(max(sizes[e] for op in order[:count] for e in op.members))
    for limit in {peak - 1 for peak in peaks_after}:
        violation = check_memory(transition, current, STATES, limit).violation
        first = next((op.id for op, peak in zip(order, peaks_after, strict=True) if peak > limit), None)
        assert (violation.op if violation else None) == first


def test_violation_says_what_is_needed_where_and_for_which_operation() -> None:
    current = make_emus("dp1")
    transition = transition_of({TRAIN: current}, {TRAIN: make_plan("dp2")}, {TRAIN: SMALL})
    violation = check_memory(transition, current, {TRAIN: SMALL}, 479.5).violation
    assert violation == MemoryViolation("d0.0", "e1.0.Extend", 480, 479)
    assert str(violation) == "e1.0.Extend needs 480 bytes on d0.0, 479 are usable"


def test_more_memory_never_turns_a_feasible_transition_into_an_infeasible_one() -> None:
    current = current_emus("tp2 dp2")
    transition = transition_of({TRAIN: current}, {TRAIN: target_plan(current, "tp2 pp2")})
    most = max(replayed_peaks(submitted(transition), current, STATES).values())
    verdicts = [check_memory(transition, current, STATES, most * share / 8).violation is None for share in range(4, 13)]
    assert verdicts == sorted(verdicts)
