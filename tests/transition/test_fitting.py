"""What does not fit at once is streamed: no more operations than it takes, and refused where even that does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.transition.dag import transition_dag
from nereus.transition.feasibility import check_memory, fitted
from nereus.transition.ops import Transition
from tests.builders import ENDPOINT_OF, STAGE, make_emus, make_model, make_plan, make_state, thin_state
from tests.layout.bounds import held_bytes
from tests.transition.scenarios import current_emus, planned, replay, target_plan, wrong_shards

STATE = make_state(make_model(tied=False, num_layers=12), optimizer=True)
PAIRS = [("tp2", "pp2"), ("pp3", "tp3"), ("tp4", "fsdp4"), ("dp2 zero1", "dp3 zero1"), ("tp2 pp2", "tp4")]
BUCKET = 4096
A, B, C = "a_training", "b_training", "c_inference"


def transition_of(source: str, target: str) -> tuple[tuple[Emu, ...], Transition]:
    current = current_emus(source)
    return current, planned(STATE, current, target_plan(current, target, STATE), bucket_bytes=BUCKET)


def peak(current: tuple[Emu, ...], transition: Transition, states: Mapping[str, StateSpec] | None = None) -> int:
    return max(check_memory(transition, current, states or {STAGE: STATE}, 1e15).peak_bytes.values())


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_transition_that_fits_is_left_as_it_is(source: str, target: str) -> None:
    current, transition = transition_of(source, target)
    found, check = fitted(transition, current, {STAGE: STATE}, peak(current, transition))
    assert (found, check.violation) == (transition, None)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_transition_that_lacks_one_byte_is_streamed_and_fits(source: str, target: str) -> None:
    current, transition = transition_of(source, target)
    found, check = fitted(transition, current, {STAGE: STATE}, peak(current, transition) - 1)
    assert check.violation is None
    assert any(op.stream for op in found.ops)
    assert peak(current, found) < peak(current, transition)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_transition_that_is_streamed_leaves_the_same_state(source: str, target: str) -> None:
    current, transition = transition_of(source, target)
    found, _ = fitted(transition, current, {STAGE: STATE}, peak(current, transition) - 1)
    run = replay(STATE, current, [*found.moving, *found.held])
    assert wrong_shards(STATE, run, transition.result) == []
    assert found.result == transition.result


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_transition_fits_with_two_buckets_and_a_tensor_to_spare(source: str, target: str) -> None:
    """One bucket goes out, one comes in: half of it in buffers, half of it open."""
    current, transition = transition_of(source, target)
    ends = held_bytes(STATE, current) | held_bytes(STATE, transition.result)
    usable = max(ends.values()) + 2 * BUCKET + max(4 * tensor.num_elements for tensor in STATE.tensors)
    assert fitted(transition, current, {STAGE: STATE}, usable)[1].violation is None


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_transition_that_fits_in_no_way_names_what_does_not(source: str, target: str) -> None:
    """Less than the units need before or after."""
    current, transition = transition_of(source, target)
    ends = held_bytes(STATE, current) | held_bytes(STATE, transition.result)
    found, check = fitted(transition, current, {STAGE: STATE}, max(ends.values()) - 1)
    assert check.violation is not None
    assert check.violation.op in {op.id for op in found.ops}


def test_only_what_is_in_the_way_is_streamed() -> None:
    """Two model-stages change alike; beside the second there is a third, so that it alone does not fit at once."""
    current = {A: make_emus("tp2", stage=A, devices=[0, 1]), B: make_emus("tp2", stage=B, devices=[2, 3])}
    targets = {A: make_plan("pp2", stage=A, devices=[0, 1]), B: make_plan("pp2", stage=B, devices=[2, 3])}
    beside = make_emus("dp1", stage=C, devices=[2])
    states = {A: STATE, B: STATE, C: thin_state(make_model(tied=False))}
    transition = transition_dag(current, targets, states, ENDPOINT_OF, 1, bucket_bytes=BUCKET // 4)
    usable = peak(current[A], transition, states)
    found, check = fitted(transition, (*current[A], *current[B], *beside), states, usable)
    assert {op.stage: bool(op.stream) for op in found.ops} == {A: False, B: True}
    assert check.violation is None
