"""Placement: units that stay keep their devices, and devices that leave are avoided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nereus.policy.placing import place
from nereus.policy.proposal import transition_to
from nereus.spec.stages import ACTOR_TRAINING
from tests.builders import make_plan
from tests.policy.snapshots import DEVICES, SNAPSHOTS, everywhere, snapshot_of

each_snapshot = pytest.mark.parametrize("name", SNAPSHOTS)


@each_snapshot
def test_plan_that_stays_is_placed_where_it_is(name: str) -> None:
    snapshot = SNAPSHOTS[name]
    for stage, plan in snapshot.plan.stages.items():
        if set(plan.devices) <= set(snapshot.usable):
            assert set(place(snapshot, plan).groups) == set(plan.groups), stage


@pytest.mark.parametrize(
    "devices",
    [
        (0, 1, 2, 3, 4, 5, 6, 7),
        (4, 5, 6, 7, 0, 1, 2, 3),
        (0, 2, 1, 3, 6, 4, 7, 5),
        (7, 6, 5, 4, 3, 2, 1, 0),
    ],
)
@pytest.mark.parametrize("text", ["dp8", "tp2 dp4", "tp2 pp2 dp2", "tp4 dp2", "tp4 pp2", "pp4 dp2"])
def test_plan_that_stays_proposes_nothing_to_move_however_its_ranks_lie(text: str, devices: tuple[int, ...]) -> None:
    snapshot = snapshot_of(everywhere("dp8") | {ACTOR_TRAINING: text}, devices={ACTOR_TRAINING: devices})
    same = make_plan(text, stage=ACTOR_TRAINING)
    placed = place(snapshot, replace(same, micro_batch=32))
    assert set(placed.groups) == set(snapshot.plan.stages[ACTOR_TRAINING].groups)
    assert transition_to(snapshot, {ACTOR_TRAINING: placed}, 1)[0].ops == ()


@pytest.mark.parametrize("dp", [1, 2, 3])
def test_units_that_stay_keep_their_devices_when_replicas_go(dp: int) -> None:
    snapshot = snapshot_of(everywhere("dp8") | {ACTOR_TRAINING: "tp2 dp4"})
    placed = place(snapshot, make_plan(f"tp2 dp{dp}", stage=ACTOR_TRAINING))
    assert set(placed.groups) <= set(snapshot.plan.stages[ACTOR_TRAINING].groups)
    transition, _ = transition_to(snapshot, {ACTOR_TRAINING: placed}, 1)
    assert transition.counts == {"Destroy": 4 - dp}
    assert transition.num_bytes == 0


def test_units_that_stay_keep_their_devices_when_replicas_come() -> None:
    snapshot = snapshot_of(everywhere("dp4") | {ACTOR_TRAINING: "tp2 dp2"}, devices={ACTOR_TRAINING: (3, 1, 5, 4)})
    placed = place(snapshot, make_plan("tp2 dp4", stage=ACTOR_TRAINING))
    assert {(3, 1), (5, 4)} <= set(placed.groups)
    assert transition_to(snapshot, {ACTOR_TRAINING: placed}, 1)[0].counts == {"Extend": 2}


def test_replicas_that_merge_stay_on_their_devices() -> None:
    snapshot = snapshot_of(everywhere("dp4") | {ACTOR_TRAINING: "tp2 dp4"})
    placed = place(snapshot, make_plan("tp2 pp2 dp2", stage=ACTOR_TRAINING))
    assert sorted(placed.devices) == list(DEVICES)
    transition, _ = transition_to(snapshot, {ACTOR_TRAINING: placed}, 1)
    assert transition.counts == {"Merge": 2}
    assert transition.num_bytes == 0


@pytest.mark.parametrize("lost", [(6, 7), (3,), (0, 4)])
def test_placement_avoids_devices_that_leave(lost: tuple[int, ...]) -> None:
    usable = tuple(device for device in DEVICES if device not in lost)
    snapshot = snapshot_of(everywhere("dp8") | {ACTOR_TRAINING: "tp2 dp4"}, usable=usable)
    for dp in (1, 2, 3):
        placed = place(snapshot, make_plan(f"tp2 dp{dp}", stage=ACTOR_TRAINING))
        assert not set(placed.devices) & set(lost)


@pytest.mark.parametrize(("zero1", "recompute"), [(True, False), (False, True), (True, True)])
def test_placing_a_plan_changes_nothing_but_its_devices(zero1: bool, recompute: bool) -> None:
    snapshot = snapshot_of(everywhere("dp4") | {ACTOR_TRAINING: "tp2 dp2"})
    wanted = replace(snapshot.plan.stages[ACTOR_TRAINING], micro_batch=8, zero1=zero1, recompute=recompute)
    assert replace(place(snapshot, wanted), devices=wanted.devices) == wanted
