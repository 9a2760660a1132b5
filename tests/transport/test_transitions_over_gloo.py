"""Real transitions between processes: after each one every shard is the oracle's, cut afresh, bit for bit."""

from __future__ import annotations

import pytest

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.errors import OutOfDeviceMemory, StaleUnitError
from nereus.layout.catalog import StateSpec
from nereus.layout.layout import Layout
from nereus.transition.arrange import arrange
from nereus.transition.dag import transition_dag
from nereus.transition.lowering import lower_sync
from nereus.transition.ops import Transition, program_for
from tests.builders import DEVICE_OF, ENDPOINT_OF, ONE_NODE, STAGE, fused_state, make_emus, make_model, make_state
from tests.transport.fleet import Fleet

pytestmark = pytest.mark.gloo

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


def plan_of(current: tuple[Emu, ...], text: str) -> StagePlan:
    tp, pp, dp = (int(word[2:]) for word in text.split())
    return arrange(current, STAGE, Layout(tp, pp), dp, range(tp * pp * dp), DEVICE_OF, ONE_NODE)


def transition_to(current: tuple[Emu, ...], text: str, state: StateSpec, epoch: int) -> Transition:
    targets = {STAGE: plan_of(current, text)}
    return transition_dag({STAGE: current}, targets, {STAGE: state}, ENDPOINT_OF, epoch, lambda a, b: True)


def carry_out(fleet: Fleet, current: tuple[Emu, ...], text: str, state: StateSpec) -> tuple[Emu, ...]:
    """One transition with every check; returns the new units."""
    epoch = fleet.next_epoch()
    transition = transition_to(current, text, state, epoch)
    before = fleet.digests(current, state)
    fleet.install(transition.ops, {STAGE: state}, epoch)
    assert fleet.run_dag(transition) == transition.num_bytes
    assert fleet.wrong_tensors(transition.result, state, state) == []
    assert all(digest == before[0] for digest in [*before, *fleet.digests(transition.result, state)])
    fleet.bind(transition.result)
    for endpoint, (used, held) in fleet.call_all(fleet.endpoints, "memory_use").items():
        ranks = [(emu, emu.rank_of(endpoint)) for emu in transition.result if endpoint in emu.endpoints]
        assert held == used["units"] == sum(state.shard_bytes(emu.layout, rank) for emu, rank in ranks)
        assert sum(used.values()) == held
    return transition.result


@pytest.mark.parametrize(("tied", "vocab"), [(True, 51), (False, 50)])
def test_chain_of_transitions_keeps_the_logical_state_bit_for_bit(fleet: Fleet, tied: bool, vocab: int) -> None:
    state = make_state(make_model(vocab=vocab, tied=tied), optimizer=True)
    emus = make_emus("tp2 pp2 dp2", epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    for text in CHAIN:
        emus = carry_out(fleet, emus, text, state)


def test_fused_tensors_survive_a_change_of_tp_in_both_directions(fleet: Fleet) -> None:
    state = fused_state()
    emus = make_emus("tp2 pp1 dp1", epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    for text in ("tp8 pp1 dp1", "tp3 pp2 dp1", "tp1 pp1 dp2", "tp4 pp1 dp2"):
        emus = carry_out(fleet, emus, text, state)


def test_weight_sync_casts_trained_weights_to_live_generation_units_again_and_again(fleet: Fleet) -> None:
    model = make_model(tied=False)
    trained, served = make_state(model, optimizer=True), make_state(model, dtype="bfloat16")
    epoch = fleet.next_epoch()
    sources = make_emus("tp2 pp2 dp2", epoch=epoch)
    targets = make_emus("tp4 pp1 dp2", stage="actor_generation", epoch=epoch)
    fleet.seed(sources, trained)
    fleet.seed(targets, make_state(model, dtype="bfloat16"))
    op = lower_sync(sources, trained, targets, served, "sync", lambda a, b: True)
    transition = Transition((op,), targets)
    fleet.install([op], {}, epoch)
    groups = {exchange.group for exchange in op.exchanges}
    for _ in range(2):
        assert fleet.run_dag(transition) == transition.num_bytes
        assert fleet.wrong_tensors(targets, served, trained) == []
        fleet.bind((*sources, *targets), groups)


def test_second_transition_between_the_same_members_reuses_their_groups(fleet: Fleet) -> None:
    state = make_state(make_model(tied=True))
    emus = make_emus("tp2 pp1 dp2", epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    made = []
    for text in ("tp1 pp1 dp4", "tp2 pp1 dp2", "tp1 pp1 dp4"):
        epoch = fleet.next_epoch()
        transition = transition_to(emus, text, state, epoch)
        installed = fleet.install(transition.ops, {STAGE: state}, epoch)
        made.append(sum(installation.groups_made for installation in installed.values()))
        fleet.run_dag(transition)
        fleet.bind(transition.result, set().union(*fleet.call_all(fleet.endpoints, "groups").values()))
        emus = transition.result
    assert made == [4, 0, 0]


def test_install_refuses_a_program_that_does_not_fit_and_changes_nothing() -> None:
    state = make_state(make_model(tied=True), optimizer=True)
    current = make_emus("tp1 pp2 dp1")
    fleet = Fleet(("d0.0", "d1.0"), capacity_bytes=2 * state.shard_bytes(current[0].layout, 0))
    try:
        fleet.seed(current, state)
        transition = transition_to(current, "tp1 pp1 dp2", state, 1)
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


def test_operation_that_loses_a_member_releases_what_it_opened_and_keeps_its_inputs() -> None:
    state = make_state(make_model(tied=True), optimizer=True)
    current = make_emus("tp1 pp2 dp1")
    fleet = Fleet(("d0.0", "d1.0"))
    try:
        fleet.seed(current, state)
        transition = transition_to(current, "tp1 pp1 dp2", state, 1)
        fleet.install(transition.ops, {STAGE: state}, 1)
        before = fleet.call("d0.0", "memory_use")
        fleet.processes["d1.0"].kill()
        fleet.post("d0.0", "run", "e1.0.Split")
        assert isinstance(fleet.failure("d0.0"), RuntimeError)
        assert fleet.call("d0.0", "memory_use") == before
        assert fleet.call("d0.0", "wrong_tensors", current[0], state, state) == []
    finally:
        fleet.close()
