"""Memory over a transition against an independent replay, and buffers by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import pytest

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, Site, StateSpec, UnitId
from nereus.layout.moves import Move
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.transition.dag import transition_dag
from nereus.transition.feasibility import MemoryViolation, buffer_bytes, check_memory
from nereus.transition.ops import TRANSFER, AllGather, GroupKey, Op, Pairwise, Part, Transition
from tests.builders import (
    ENDPOINT_OF,
    make_emus,
    make_model,
    make_plan,
    make_state,
    rank_masks,
)
from tests.transition.scenarios import current_emus, target_plan

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
    current: Mapping[str, tuple[Emu, ...]], targets: Mapping[str, StagePlan], states: Mapping[str, StateSpec] = STATES
) -> Transition:
    return transition_dag(current, targets, states, ENDPOINT_OF, 1, lambda a, b: True)


def unit_bytes(states: Mapping[str, StateSpec], emu: Emu) -> dict[EndpointId, int]:
    """Bytes of a unit on each endpoint, from the masks of the reference."""
    held = dict.fromkeys(emu.endpoints, 0)
    for endpoint, tensor, mask in rank_masks(states[emu.stage], emu):
        held[endpoint] += int(mask.sum()) * tensor.item_bytes
    return held


def submitted(transition: Transition) -> list[Op]:
    """The ops as they run: the Destroys that no other op awaits come last."""
    awaited = {name for op in transition.ops for name in op.after}
    held = [op for op in transition.ops if op.primitive == "Destroy" and op.id not in awaited]
    return [op for op in transition.ops if op not in held] + held


def replayed_peaks(ops: Iterable[Op], current: Iterable[Emu], states: Mapping[str, StateSpec]) -> dict[EndpointId, int]:
    """The largest sum, op by op, of the units that stand on each endpoint and the buffers of the op.

    A unit stands from its making to the end of the transition, whatever reads or ends it, unless a Destroy takes it.
    """
    ops = list(ops)
    standing = {emu.unit: unit_bytes(states, emu) for emu in current}
    endpoints = {e for held in standing.values() for e in held} | {e for op in ops for e in op.members}
    peaks = dict.fromkeys(endpoints, 0)

    def look(buffers: Mapping[EndpointId, int]) -> None:
        for endpoint in endpoints:
            used = sum(held.get(endpoint, 0) for held in standing.values()) + buffers.get(endpoint, 0)
            peaks[endpoint] = max(peaks[endpoint], used)

    look({})
    for op in ops:
        standing.update({emu.unit: unit_bytes(states, emu) for emu in op.makes})
        look({endpoint: wire_bytes(op, endpoint) for endpoint in op.members})
        if op.primitive == "Destroy":
            for emu in op.ends:
                del standing[emu.unit]
    return peaks


def wire_bytes(op: Op, endpoint: EndpointId) -> int:
    """What a device's buffers of an op hold: all gathered bytes, as much again to even out equal parts, all paired bytes."""
    total = 0
    for exchange in op.exchanges:
        if isinstance(exchange, Pairwise):
            total += sum(m.num_bytes for m in exchange.moves if endpoint in {m.source.endpoint, m.target.endpoint})
        elif endpoint in exchange.group.members:
            parts = [sum(part.num_bytes for part in parts) for parts in exchange.parts]
            total += sum(parts) + (sum(parts) if max(parts) == min(parts) else 0)
    return total


# --- the peak ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_peak_is_that_of_a_replay_of_units_and_buffers(before: str, after: str) -> None:
    for seed in (0, 1):
        current = current_emus(before, seed)
        transition = transition_of({TRAIN: current}, {TRAIN: target_plan(current, after)})
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
        for endpoint, size in unit_bytes(STATES, emu).items():
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
    assert dict(found.peak_bytes) == {e: size for emu in current for e, size in unit_bytes(STATES, emu).items()}
    assert found.violation is None


def test_inputs_of_a_split_are_held_with_its_parts() -> None:
    """tp 2 to two replicas: each endpoint holds its half, the whole, and both halves twice in buffers: 120 + 240 + 480."""
    current = make_emus("tp2")
    transition = transition_of({TRAIN: current}, {TRAIN: make_plan("dp2")}, {TRAIN: SMALL})
    assert transition.counts == {"Split": 1}
    assert dict(check_memory(transition, current, {TRAIN: SMALL}, PLENTY).peak_bytes) == {"d0.0": 840, "d1.0": 840}


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
    assert [op.primitive for op in transition.held] == ["Destroy"]
    everyone = [emu for emus in current.values() for emu in emus]
    assert check_memory(transition, everyone, states, PLENTY).peak_bytes["d1.0"] == 240 + 240 + 240


def test_awaited_destroy_frees_its_unit_before_what_waits_for_it() -> None:
    """A replica whose ranks shall lie the other way round goes before the new one comes onto the same devices."""
    current = make_emus("tp2 dp2", devices=(0, 1, 2, 3))
    target = make_plan("tp2 dp2", devices=(0, 1, 3, 2))
    transition = transition_of({TRAIN: current}, {TRAIN: target}, {TRAIN: SMALL})
    assert [op.primitive for op in transition.moving] == ["Destroy", "Extend"]
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


# --- buffers -----------------------------------------------------------------------------------------------------------

OLD, NEW = UnitId(TRAIN, 0, 0), UnitId(TRAIN, 1, 1)


def part(rows: int) -> Part:
    return Part(ROWS, Box.whole((12, 5)).along(0, 0, rows), OLD)


def gather(*rows: int) -> AllGather:
    members = tuple(f"d{index}.0" for index in range(len(rows)))
    return AllGather(GroupKey(members, TRANSFER), tuple((part(count),) for count in rows), (NEW,) * len(rows))


def move(source: str, target: str, rows: int) -> Move:
    return Move(ROWS, Box.whole((12, 5)).along(0, 0, rows), Site(source, OLD), Site(target, NEW))


def op_of(*exchanges: AllGather | Pairwise, copies: tuple[Move, ...] = ()) -> Op:
    return Op("e1.0.Any", "Split", TRAIN, (), (), copies, exchanges, ())


def test_gather_of_equal_parts_buffers_all_parts_twice() -> None:
    assert buffer_bytes(op_of(gather(6, 6)), "d0.0") == 2 * 12 * 20
    assert buffer_bytes(op_of(gather(4, 4, 4)), "d2.0") == 2 * 12 * 20


def test_gather_of_unequal_parts_buffers_each_part_once() -> None:
    assert buffer_bytes(op_of(gather(5, 7)), "d0.0") == 12 * 20


def test_pairs_buffer_what_an_endpoint_sends_and_receives() -> None:
    moves = (move("d0.0", "d1.0", 3), move("d1.0", "d0.0", 2), move("d0.0", "d2.0", 1))
    op = op_of(Pairwise(GroupKey(("d0.0", "d1.0", "d2.0"), TRANSFER), moves))
    assert [buffer_bytes(op, e) for e in ("d0.0", "d1.0", "d2.0")] == [6 * 20, 5 * 20, 1 * 20]


def test_buffers_of_several_exchanges_add_up_on_the_members_of_each() -> None:
    op = op_of(gather(6, 6), Pairwise(GroupKey(("d1.0", "d2.0"), TRANSFER), (move("d1.0", "d2.0", 3),)))
    assert [buffer_bytes(op, e) for e in ("d0.0", "d1.0", "d2.0", "d3.0")] == [480, 540, 60, 0]


def test_local_copies_need_no_buffer() -> None:
    assert buffer_bytes(op_of(copies=(move("d0.0", "d0.0", 12),)), "d0.0") == 0
