"""Real transitions between processes: chains, what a refused or broken one leaves, and groups that are used again."""

from __future__ import annotations

from math import inf

import pytest

from nereus.errors import OutOfDeviceMemory, StaleUnitError
from nereus.transition.dag import transition_dag
from nereus.transition.feasibility import check_memory
from nereus.transition.ops import Transition, program_for
from tests.builders import ENDPOINT_OF, STAGE, fused_state, make_emus, make_model, make_plan, make_state
from tests.transport.carrying import Mode, carry_out, plan_of, transition_to
from tests.transport.fleet import Fleet
from tests.transport.models import served_state, small_state

pytestmark = pytest.mark.gloo

GENERATION = "actor_generation"

CHAIN = (
    "tp1 pp4 dp2",
    "tp2 pp1 dp4",
    "tp1 pp1 dp8",
    "tp2 pp4 dp1",
    "tp4 pp2 dp1",
    "tp2 pp2 dp2",
    "tp1 pp2 dp1",
    "tp1 pp3 dp2",
)


@pytest.mark.parametrize(("tied", "vocab"), [(True, 51), (False, 50)])
def test_chain_of_transitions_keeps_the_logical_state_bit_for_bit(fleet: Fleet, tied: bool, vocab: int) -> None:
    state = make_state(make_model(vocab=vocab, tied=tied), optimizer=True)
    emus = make_emus("tp2 pp2 dp2", epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    for text in CHAIN:
        emus = carry_out(fleet, emus, plan_of(emus, text), state)


def test_fused_tensors_survive_a_change_of_tp_in_both_directions(fleet: Fleet) -> None:
    state = fused_state()
    emus = make_emus("tp2 pp1 dp1", epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    for text in ("tp8 pp1 dp1", "tp3 pp2 dp1", "tp1 pp1 dp2", "tp4 pp1 dp2"):
        emus = carry_out(fleet, emus, plan_of(emus, text), state)


def test_second_transition_between_the_same_members_reuses_their_groups(fleet: Fleet) -> None:
    state = make_state(make_model(tied=True))
    emus = make_emus("tp2 pp1 dp2", epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    made = []
    for text in ("tp1 pp1 dp4", "tp2 pp1 dp2", "tp1 pp1 dp4"):
        epoch = fleet.next_epoch()
        transition = transition_to(emus, plan_of(emus, text), state, epoch)
        installed = fleet.install(transition.ops, {STAGE: state}, epoch)
        made.append(sum(installation.groups_made for installation in installed.values()))
        fleet.run_dag(transition)
        fleet.bind(transition.result, set().union(*fleet.call_all(fleet.endpoints, "groups").values()))
        emus = transition.result
    assert made == [4, 0, 0]


def test_two_model_stages_change_places_on_devices_that_they_never_share(fleet: Fleet) -> None:
    states = {STAGE: small_state(), GENERATION: served_state()}
    epoch = fleet.next_epoch()
    current = {
        STAGE: make_emus("tp2 dp2", epoch=epoch),
        GENERATION: make_emus("tp4", stage=GENERATION, devices=range(4, 8), epoch=epoch),
    }
    targets = {
        STAGE: make_plan("tp1 pp2", devices=[0, 1]),
        GENERATION: make_plan("tp2 dp3", stage=GENERATION, devices=[4, 5, 6, 7, 2, 3]),
    }
    for stage, emus in current.items():
        fleet.seed(emus, states[stage])
    transition = transition_dag(current, targets, states, ENDPOINT_OF, fleet.next_epoch(), exclusive=lambda a, b: True)
    fleet.install(transition.ops, states, fleet.next_epoch())
    assert fleet.run_dag(transition) == transition.num_bytes
    for stage, state in states.items():
        made = [emu for emu in transition.result if emu.stage == stage]
        assert len(made) == targets[stage].dp
        assert fleet.wrong_tensors(made, state, state) == []


def test_old_units_stand_until_the_proof_where_nothing_waits_for_their_devices(fleet: Fleet) -> None:
    state = small_state()
    emus = make_emus("tp8", epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    epoch = fleet.next_epoch()
    transition = transition_to(emus, plan_of(emus, "tp2 dp3"), state, epoch)
    fleet.install(transition.ops, {STAGE: state}, epoch)
    fleet.run_dag(Transition(transition.moving, transition.result))
    assert fleet.wrong_tensors(emus, state, state) == []


def test_install_refuses_a_program_that_does_not_fit_and_changes_nothing() -> None:
    state = make_state(make_model(tied=True), optimizer=True)
    current = make_emus("tp1 pp2 dp1")
    fleet = Fleet(("d0.0", "d1.0"), capacity_bytes=2 * state.shard_bytes(current[0].layout, 0))
    try:
        fleet.seed(current, state)
        transition = transition_to(current, plan_of(current, "tp1 pp1 dp2"), state, 1)
        for endpoint in fleet.endpoints:
            fleet.post(endpoint, "install", program_for(endpoint, 1, transition.ops, (), {STAGE: state}))
        for endpoint in fleet.endpoints:
            error = fleet.failure(endpoint)
            assert isinstance(error, OutOfDeviceMemory)
            assert error.facts["operation"] == "e1.0.Split"
        assert set(fleet.call_all(fleet.endpoints, "groups").values()) == {frozenset()}
        assert fleet.wrong_tensors(current, state, state) == []
        fleet.post("d0.0", "run", "e1.0.Split")
        assert isinstance(fleet.failure("d0.0"), StaleUnitError)
    finally:
        fleet.close()


def test_install_refuses_a_stream_that_does_not_fit() -> None:
    state = make_state(make_model(tied=True), optimizer=True)
    current = make_emus("tp1 pp2 dp1")
    mode = Mode(stream=True, bucket_bytes=8192)
    transition = transition_to(current, plan_of(current, "tp1 pp1 dp2"), state, 1, mode)
    peaks = check_memory(transition, current, {STAGE: state}, inf).peak_bytes
    fleet = Fleet(("d0.0", "d1.0"), capacity_bytes=min(peaks.values()) - 1)
    try:
        fleet.seed(current, state)
        for endpoint in fleet.endpoints:
            fleet.post(endpoint, "install", program_for(endpoint, 1, transition.ops, (), {STAGE: state}))
        for endpoint in fleet.endpoints:
            assert isinstance(fleet.failure(endpoint), OutOfDeviceMemory)
    finally:
        fleet.settle()
        fleet.close()


def test_operation_that_loses_a_member_releases_what_it_opened_and_keeps_its_inputs() -> None:
    state = make_state(make_model(tied=True), optimizer=True)
    current = make_emus("tp1 pp2 dp1")
    fleet = Fleet(("d0.0", "d1.0"))
    try:
        fleet.seed(current, state)
        transition = transition_to(current, plan_of(current, "tp1 pp1 dp2"), state, 1)
        fleet.install(transition.ops, {STAGE: state}, 1)
        before = fleet.call("d0.0", "memory_use")
        fleet.processes["d1.0"].kill()
        fleet.post("d0.0", "run", "e1.0.Split")
        assert isinstance(fleet.failure("d0.0"), RuntimeError)
        assert fleet.call("d0.0", "memory_use") == before
        assert fleet.call("d0.0", "wrong_tensors", current[0], state, state) == []
    finally:
        fleet.close()
