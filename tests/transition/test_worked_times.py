"""The worked examples in time: operations by the links' figures, and their critical path (paper, section 6).

A device's interface 25 GB/s, links in a node 200 GB/s, a node's uplink 100 GB/s, memory 1,000 GB/s, 5 ms for each operation;
nodes of eight devices, numbered from 1 as in the paper. Reward and actor have 16 GB, the critic 128 GB. Communicators are
made before anything moves, so their set-up is no part of an operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nereus.emu.plan import StagePlan
from nereus.emu.unit import Emu
from nereus.layout.catalog import StateSpec
from nereus.layout.tensors import CanonicalTensor, Kind, Place, Segment
from nereus.transition.arrange import arrange
from nereus.transition.collectives import TRANSFER, GroupKey
from nereus.transition.dag import Change
from nereus.transition.estimate import LinkRates, op_seconds, transition_seconds
from nereus.transition.ops import Op, Transition
from nereus.transition.planning import planned
from nereus.transition.verdicts import Found
from tests.builders import DEVICE_OF, ENDPOINT_OF, ONE_NODE, make_emus, make_plan
from tests.transition.scenarios import always
from tests.transition.test_worked_examples import ACTOR, CRITIC, FIGURE_6, REWARD, SHRUNK, SIXTEEN

NODES = {endpoint: (device - 1) // 8 for endpoint, device in DEVICE_OF.items()}
GB = 10**9
COMMIT_S = OP_S = 0.005
WIDE = LinkRates(wire_bytes_s=25e9, near_bytes_s=200e9, copy_bytes_s=1e12, op_s=OP_S, base_s=COMMIT_S, group_s=0.002)
RATES = replace(WIDE, uplink_bytes_s=100e9)


def sized(gigabytes: int) -> StateSpec:
    """Eight layers of one tensor each, cut by rows."""
    columns = gigabytes * GB // (8 * 80 * 4)
    tensors = (
        CanonicalTensor(f"{i}.weight", Kind.PARAMETER, (80, columns), "float32", Place.LAYER, i, 0, (Segment(80),))
        for i in range(8)
    )
    return StateSpec(tuple(tensors), 8)


STATES = {ACTOR: sized(16), CRITIC: sized(128), REWARD: sized(16)}


def change_of(current: Mapping[str, tuple[Emu, ...]], targets: Mapping[str, StagePlan]) -> Change:
    return Change(current, targets, STATES, ENDPOINT_OF, 1, NODES, always)


def carried_out(change: Change) -> Transition:
    transition, memory = planned(change, [e for emus in change.current.values() for e in emus], float("inf"), RATES)
    assert (memory.violation, transition.found) == (None, Found.GREEDY)
    return transition


def starts_s(transition: Transition) -> dict[str, float]:
    """When each operation starts, by its waits alone."""
    ends: dict[str, float] = {}
    starts: dict[str, float] = {}
    for op in transition.ops:
        starts[op.id] = max((ends[name] for name in op.after), default=0.0)
        ends[op.id] = starts[op.id] + op_seconds(op, RATES, NODES)
    return starts


def of_kind(transition: Transition, stage: str, *primitives: str) -> list[Op]:
    return [op for op in transition.ops if op.stage == stage and set(op.primitives) == set(primitives)]


FIGURE_6_TARGETS = {
    ACTOR: make_plan("tp4 pp2 dp3", stage=ACTOR, devices=[*range(1, 17), *range(49, 57)]),
    CRITIC: make_plan("tp4 pp2 dp3", stage=CRITIC, devices=[*range(17, 33), *range(57, 65)]),
    REWARD: SHRUNK,
}


def test_figure_6_in_time() -> None:
    """Fused: 80 ms, since eight devices get 1 GB each from other nodes, 8 GB into their node; then 5 ms; then the Extends,
    160 and 1,280 ms by the uplink of the source's node."""
    transition = carried_out(change_of(FIGURE_6, FIGURE_6_TARGETS))
    starts = starts_s(transition)
    (reshape,) = of_kind(transition, REWARD, "Split", "Merge")
    assert op_seconds(reshape, RATES, NODES) == pytest.approx(0.080 + OP_S)
    destroys = of_kind(transition, REWARD, "Destroy")
    assert [starts[op.id] for op in destroys] == pytest.approx([0.085, 0.085])
    (actor,), (critic,) = of_kind(transition, ACTOR, "Extend"), of_kind(transition, CRITIC, "Extend")
    assert [starts[actor.id], starts[critic.id]] == pytest.approx([0.090, 0.090])
    assert op_seconds(actor, RATES, NODES) == pytest.approx(0.160 + OP_S)
    assert op_seconds(critic, RATES, NODES) == pytest.approx(1.280 + OP_S)


def test_figure_6_takes_the_reshape_a_destroy_and_the_longer_extend() -> None:
    transition = carried_out(change_of(FIGURE_6, FIGURE_6_TARGETS))
    assert transition_seconds(transition, {}, RATES, NODES) == pytest.approx(0.085 + 0.005 + 1.285 + COMMIT_S)


def test_figure_6_unfused_takes_80_ms_longer() -> None:
    """The Split alone gives two nodes' devices 2 GB each: 16 GB over an uplink, 160 ms, before a Destroy may start."""
    change = change_of(FIGURE_6, FIGURE_6_TARGETS)
    seconds = [transition_seconds(next(change.transitions(fuse=fuse)), {}, RATES, NODES) for fuse in (False, True)]
    assert seconds[0] - seconds[1] == pytest.approx(0.080)


THIRTY_TWO = {
    ACTOR: arrange(
        SIXTEEN[ACTOR], make_plan("tp2 pp4 dp2", stage=ACTOR, devices=[*range(1, 9), *range(17, 25)]), DEVICE_OF, ONE_NODE
    ),
    CRITIC: make_plan("pp4 dp4", stage=CRITIC, devices=[*range(9, 17), *range(25, 33)]),
}


def test_16_to_32_extends_of_a_node_share_its_uplink() -> None:
    """Each critic Extend sends four ranks 32 GB: 128 GB by one uplink, 1,280 ms, and the next after it."""
    transition = carried_out(change_of(SIXTEEN, THIRTY_TWO))
    extends = of_kind(transition, CRITIC, "Extend")
    assert [op_seconds(op, RATES, NODES) for op in extends] == pytest.approx([1.285, 1.285])
    assert not set(extends[0].members) & set(extends[1].members)
    assert transition_seconds(transition, {}, RATES, NODES) == pytest.approx(2 * 1.285 + COMMIT_S)


def test_16_to_32_takes_half_as_long_where_uplinks_are_wide() -> None:
    """By the devices' own interfaces: 32 GB at 25 GB/s, both Extends at once."""
    transition = carried_out(change_of(SIXTEEN, THIRTY_TWO))
    assert transition_seconds(transition, {}, WIDE, NODES) == pytest.approx(1.285 + COMMIT_S)


def test_critic_of_figure_1b_starts_when_the_destroy_has_ended() -> None:
    current = {
        ACTOR: make_emus("dp2", stage=ACTOR, devices=[9, 10]),
        CRITIC: make_emus("tp1", stage=CRITIC, devices=[11]),
    }
    targets = {
        ACTOR: make_plan("dp1", stage=ACTOR, devices=[9]),
        CRITIC: make_plan("dp2", stage=CRITIC, devices=[11, 10]),
    }
    transition = carried_out(change_of(current, targets))
    assert list(starts_s(transition).values()) == pytest.approx([0, OP_S])
    near_s = 128 * GB / 200e9
    assert transition_seconds(transition, {}, RATES, NODES) == pytest.approx(OP_S + near_s + OP_S + COMMIT_S)


def test_set_up_of_communicators_comes_before_all_of_it() -> None:
    """2 ms a member on the busiest endpoint."""
    transition = carried_out(change_of(FIGURE_6, FIGURE_6_TARGETS))
    key = GroupKey(("d1.0", "d49.0"), TRANSFER)
    without = transition_seconds(transition, {}, RATES, NODES)
    assert transition_seconds(transition, {"d1.0": (key,)}, RATES, NODES) == pytest.approx(without + 2 * 0.002)
