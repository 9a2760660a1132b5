"""The critical path of a transition, by hand and by the directions in which it may not move."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.layout.box import Box
from nereus.layout.catalog import Site, UnitId
from nereus.layout.moves import Move
from nereus.layout.tensors import CanonicalTensor, Kind, Place
from nereus.transition.collectives import TRANSFER, AllGather, GroupKey, Pairwise, Part
from nereus.transition.dag import transition_dag
from nereus.transition.estimate import LinkRates, Outcome, op_seconds, transition_seconds
from nereus.transition.ops import Op, Transition
from tests.builders import ENDPOINT_OF, make_emus, make_model, make_plan, make_state

TRAIN = "actor_training"
MB = 1_000_000
AS_PREDICTED = Outcome(2.0, 2.0)
RATES = LinkRates(wire_bytes_s=1e9, copy_bytes_s=2e9, op_s=0.5, group_s=0.1)
BYTES = CanonicalTensor("bytes", Kind.PARAMETER, (10_000 * MB,), "float32", Place.EVERYWHERE)
OLD, NEW = UnitId(TRAIN, 0, 0), UnitId(TRAIN, 1, 1)


def box(megabytes: float) -> Box:
    """A box of so many megabytes."""
    return Box.whole(BYTES.shape).along(0, 0, round(megabytes * MB / 4))


def move(source: int, target: int, megabytes: float) -> Move:
    return Move((BYTES,), box(megabytes), Site(f"d{source}.0", OLD), Site(f"d{target}.0", NEW))


def send(name: str, *moves: tuple[int, int, float], after: tuple[str, ...] = ()) -> Op:
    """An operation of pairwise sends; moves from a device to itself are copies."""
    made = [move(*m) for m in moves]
    wire = tuple(m for m in made if not m.is_local)
    key = GroupKey.of([e for m in wire for e in (m.source.endpoint, m.target.endpoint)], TRANSFER)
    copies = tuple(m for m in made if m.is_local)
    return Op(name, ("Extend",), TRAIN, (), (), copies, (Pairwise(key, wire),) if wire else (), after)


def destroy(name: str, device: int) -> Op:
    return Op(name, ("Destroy",), TRAIN, (), (Site(f"d{device}.0", OLD),), (), (), ())


def seconds(*ops: Op, rates: LinkRates = RATES) -> float:
    """Without set-up and commit."""
    return transition_seconds(Transition(ops, ()), {}, rates) - rates.scale * rates.op_s


# --- one operation -----------------------------------------------------------------------------------------------------


def test_operation_takes_as_long_as_its_busiest_endpoint_sends_and_receives() -> None:
    """Device 0 sends 100 and receives 200 MB at 1 GB/s; the others less."""
    assert op_seconds(send("a", (0, 1, 100), (2, 0, 200)), RATES) == pytest.approx(0.5 + 0.3)


def test_copies_take_their_own_rate_where_they_land() -> None:
    assert op_seconds(send("a", (0, 0, 400)), RATES) == pytest.approx(0.5 + 0.2)
    assert op_seconds(send("a", (0, 0, 400), (0, 1, 100)), RATES) == pytest.approx(0.5 + 0.2 + 0.1)
    assert op_seconds(send("a", (0, 0, 400), (1, 2, 300)), RATES) == pytest.approx(0.5 + 0.3)


def test_gather_sends_each_part_to_every_other_member() -> None:
    """The largest part, 300 MB, goes out twice, and the other two come in: 900 MB at 1 GB/s."""
    parts = tuple((Part((BYTES,), box(size), OLD),) for size in (100, 200, 300))
    exchange = AllGather(GroupKey(("d0.0", "d1.0", "d2.0"), TRANSFER), parts, (NEW,) * 3)
    op = Op("a", ("Split",), TRAIN, (), (), (), (exchange,), ())
    assert op_seconds(op, RATES) == pytest.approx(0.5 + 0.9)


def test_operation_that_moves_nothing_is_not_free() -> None:
    assert op_seconds(destroy("a", 0), RATES) == 0.5


NODES = {f"d{device}.0": device // 2 for device in range(8)}
LINKED = replace(RATES, near_bytes_s=4e9, uplink_bytes_s=1.5e9)


def test_bytes_inside_a_node_take_the_rate_of_its_links() -> None:
    assert op_seconds(send("a", (0, 1, 400)), LINKED, NODES) == pytest.approx(0.5 + 0.1)
    assert op_seconds(send("a", (0, 2, 400)), LINKED, NODES) == pytest.approx(0.5 + 0.4)


def test_operation_takes_as_long_as_the_busiest_uplink_if_that_is_longer() -> None:
    """Devices 0 and 1 send 400 MB each at 1 GB/s; together 800 MB leave the node at 1.5 GB/s."""
    assert op_seconds(send("a", (0, 2, 400), (1, 4, 400)), LINKED, NODES) == pytest.approx(0.5 + 0.8 / 1.5)


def test_endpoints_of_which_no_node_is_known_are_on_one() -> None:
    assert op_seconds(send("a", (0, 2, 400)), LINKED) == pytest.approx(0.5 + 0.1)


def test_operations_share_an_uplink_as_far_as_it_goes() -> None:
    """600 MB in 0.5 + 0.6 s are 0.36 of an uplink each: two from one node go at once, and a third after them."""
    ops = [send("a", (0, 2, 600)), send("b", (1, 4, 600))]
    together = transition_seconds(Transition(tuple(ops), ()), {}, LINKED, NODES)
    assert together == pytest.approx(0.5 + 0.6 + 0.5)
    slow = replace(LINKED, uplink_bytes_s=0.8e9)
    assert transition_seconds(Transition(tuple(ops), ()), {}, slow, NODES) == pytest.approx(2 * (0.5 + 0.75) + 0.5)


# --- several operations ------------------------------------------------------------------------------------------------


def test_operations_on_disjoint_devices_overlap() -> None:
    together = seconds(send("a", (0, 1, 300)), send("b", (2, 3, 200)), send("c", (4, 5, 100)))
    assert together == pytest.approx(0.5 + 0.3)


def test_operations_on_a_common_device_follow_each_other() -> None:
    assert seconds(send("a", (0, 1, 300)), send("b", (1, 2, 200))) == pytest.approx(0.5 + 0.3 + 0.5 + 0.2)


def test_chain_of_operations_adds_up_on_disjoint_devices_too() -> None:
    chain = (send("a", (0, 1, 300)), send("b", (2, 3, 200), after=("a",)), send("c", (4, 5, 100), after=("b",)))
    assert seconds(*chain) == pytest.approx(3 * 0.5 + 0.6)


def test_operation_waits_for_the_last_of_those_before_it() -> None:
    ops = (send("a", (0, 1, 300)), send("b", (2, 3, 900)), send("c", (4, 5, 100), after=("a", "b")))
    assert seconds(*ops) == pytest.approx(0.5 + 0.9 + 0.5 + 0.1)


def test_held_destroys_come_after_what_moves_on_their_devices() -> None:
    assert seconds(destroy("a", 1), send("b", (0, 1, 300))) == pytest.approx(0.5 + 0.3 + 0.5)


def test_commit_is_an_operation_and_the_only_one_of_an_empty_transition() -> None:
    assert transition_seconds(Transition((), ()), {}, RATES) == 0.5


def test_set_up_takes_the_groups_of_the_busiest_endpoint_by_members() -> None:
    pair, four = GroupKey(("d0.0", "d1.0"), TRANSFER), GroupKey(("d0.0", "d1.0", "d2.0", "d3.0"), TRANSFER)
    groups = {"d0.0": (pair, four), "d1.0": (pair, four), "d2.0": (four,), "d3.0": (four,)}
    assert transition_seconds(Transition((), ()), groups, RATES) == pytest.approx(0.1 * (2 + 4) + 0.5)


def test_scales_multiply_moving_and_set_up_apart() -> None:
    """0.1 s for each of two members; 0.3 s on the wire, 0.5 s of the operation, and 0.5 s to commit."""
    transition, groups = Transition((send("a", (0, 1, 300)),), ()), {"d0.0": (GroupKey(("d0.0", "d1.0"), TRANSFER),)}
    scaled = replace(RATES, scale=3.0, setup_scale=5.0)
    assert transition_seconds(transition, groups, scaled) == pytest.approx(5 * 0.2 + 3 * (0.3 + 0.5 + 0.5))


# --- monotone ----------------------------------------------------------------------------------------------------------

MOVES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 500)), min_size=1, max_size=3)
OPS = st.lists(st.tuples(MOVES, st.sets(st.integers(0, 5))), min_size=1, max_size=6)


def ops_of(drawn: list[tuple[list[tuple[int, int, int]], set[int]]], factor: float = 1.0) -> list[Op]:
    """Operations that wait for some of those before them."""
    return [
        send(
            f"op{i}", *[(a, b, size * factor) for a, b, size in moves], after=tuple(f"op{j}" for j in sorted(after) if j < i)
        )
        for i, (moves, after) in enumerate(drawn)
    ]


@settings(max_examples=150, deadline=None)
@given(drawn=OPS, factor=st.floats(1, 10))
def test_more_bytes_never_take_less_time(drawn: list[tuple[list[tuple[int, int, int]], set[int]]], factor: float) -> None:
    assert seconds(*ops_of(drawn)) <= seconds(*ops_of(drawn, factor)) + 1e-9


@settings(max_examples=150, deadline=None)
@given(drawn=OPS)
def test_more_operations_never_take_less_time(drawn: list[tuple[list[tuple[int, int, int]], set[int]]]) -> None:
    ops = ops_of(drawn)
    times = [seconds(*ops[:count]) for count in range(len(ops) + 1)]
    assert all(a <= b + 1e-9 for a, b in pairwise(times))


@settings(max_examples=150, deadline=None)
@given(drawn=OPS)
def test_transition_lies_between_its_longest_operation_and_the_sum_of_all(
    drawn: list[tuple[list[tuple[int, int, int]], set[int]]],
) -> None:
    ops = ops_of(drawn)
    each = [op_seconds(op, RATES) for op in ops]
    assert max(each) - 1e-9 <= seconds(*ops) <= sum(each) + 1e-9


def test_larger_state_takes_longer_over_the_same_primitives() -> None:
    times = []
    for layers in (4, 8, 12):
        state = make_state(make_model(tied=False, num_layers=layers), optimizer=True)
        current = {TRAIN: make_emus("tp2 pp2")}
        transition = transition_dag(current, {TRAIN: make_plan("tp2 dp3")}, {TRAIN: state}, ENDPOINT_OF, 1)
        times.append(seconds(*transition.ops, rates=replace(RATES, wire_bytes_s=1e5)))
    assert times[0] < times[1] < times[2]


# --- correction --------------------------------------------------------------------------------------------------------


def test_correction_moves_half_way_to_what_was_measured() -> None:
    assert RATES.corrected(AS_PREDICTED, Outcome(2.0, 6.0)) == replace(RATES, scale=2.0)
    assert RATES.corrected(AS_PREDICTED, Outcome(2.0, 1.0)) == replace(RATES, scale=0.75)
    assert RATES.corrected(AS_PREDICTED, AS_PREDICTED) == RATES


def test_set_up_is_corrected_apart_from_moving() -> None:
    assert RATES.corrected(Outcome(2.0, 1.0), Outcome(2.0, 6.0)) == replace(RATES, scale=2.0, setup_scale=0.75)


def test_part_that_was_not_predicted_is_not_corrected() -> None:
    """A transition without communicators says nothing of how long they take."""
    assert RATES.corrected(Outcome(0.0, 1.0), AS_PREDICTED) == RATES


def test_correction_starts_from_the_scale_so_far() -> None:
    """A true scale of 3: half of the way each time."""
    rates, errors = RATES, []
    for _ in range(8):
        rates = rates.corrected(AS_PREDICTED, Outcome(rates.scale * 2.0, 3.0 * 2.0))
        errors.append(3.0 - rates.scale)
    assert all(b == pytest.approx(a / 2) for a, b in pairwise(errors))


def test_one_odd_transition_changes_the_scale_by_three_at_most() -> None:
    """Measured over predicted is taken as between a fifth and five."""
    assert RATES.corrected(AS_PREDICTED, Outcome(1.0, 1000.0)).scale == pytest.approx(3.0)
    assert RATES.corrected(AS_PREDICTED, Outcome(1.0, 0.0)).scale == pytest.approx(0.6)
