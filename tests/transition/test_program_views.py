"""What each endpoint installs: its part of every operation, so that all members of a collective enter it, in one order."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from nereus.layout.moves import Move
from nereus.transition.collectives import TRANSFER, AllGather, GroupKey, Pairwise
from nereus.transition.messages import messages
from nereus.transition.ops import Op, Program, Transition, program_for
from tests.builders import make_model, thin_state
from tests.layout.models import thin_trained_state
from tests.transition.scenarios import current_emus, planned, target_plan

TIED = thin_trained_state(make_model(tied=True, num_heads=3, num_kv_heads=3))
UNTIED = thin_state(make_model(tied=False))
PAIRS = [
    ("tp2 pp2 dp2", "tp4 pp2"),
    ("tp4 pp2", "tp1 pp2 dp3"),
    ("tp2 dp2", "tp2 dp4"),
    ("tp3 pp2", "tp2 pp3"),
    ("dp4 zero1", "tp2 dp3 zero1"),
    ("fsdp4", "tp2 fsdp3"),
]
WAYS = {"fused": (True, False), "unfused": (False, False), "streamed": (True, True)}
VIEWED = [pytest.param(*pair, *how, id=f"{pair[0]} to {pair[1]}, {name}") for pair in PAIRS for name, how in WAYS.items()]
every_way = pytest.mark.parametrize(("source", "target", "fuse", "stream"), VIEWED)


def programs(source: str, target: str, fuse: bool, stream: bool) -> tuple[Transition, dict[str, Program]]:
    current = current_emus(source, seed=1)
    transition = planned(TIED, current, target_plan(current, target), fuse=fuse, stream=stream, bucket_bytes=500)
    endpoints = {endpoint for op in transition.ops for endpoint in op.members}
    compute = [GroupKey.of(emu.endpoints, "compute") for emu in transition.result]
    states = {"actor_training": TIED, "critic_training": UNTIED}
    return transition, {
        endpoint: program_for(endpoint, 1, transition.ops, compute, states) for endpoint in sorted(endpoints)
    }


def wire_moves(op: Op) -> Counter[Move]:
    return Counter(move for x in op.exchanges if isinstance(x, Pairwise) for move in x.moves)


@every_way
def test_views_of_all_endpoints_hold_every_copy_once(source: str, target: str, fuse: bool, stream: bool) -> None:
    transition, views = programs(source, target, fuse, stream)
    seen = Counter(move for program in views.values() for op in program.ops for move in op.copies)
    assert seen == Counter(move for op in transition.ops for move in op.copies)


@every_way
def test_views_of_both_ends_hold_every_pairwise_move(source: str, target: str, fuse: bool, stream: bool) -> None:
    transition, views = programs(source, target, fuse, stream)
    expected: Counter[tuple[str, Move]] = Counter()
    for op in transition.ops:
        for move, count in wire_moves(op).items():
            expected[move.source.endpoint, move] += count
            expected[move.target.endpoint, move] += count
    seen = Counter((e, move) for e, program in views.items() for op in program.ops for move in wire_moves(op).elements())
    assert seen == expected


@every_way
def test_every_member_of_a_collective_sees_it_and_no_one_else(source: str, target: str, fuse: bool, stream: bool) -> None:
    """Trap 16: all members enter, or none."""
    transition, views = programs(source, target, fuse, stream)
    for op in transition.ops:
        for index, group in enumerate(x.group for x in op.exchanges):
            for endpoint, program in views.items():
                seen = [mine for mine in program.ops if mine.id == op.id]
                entered = [x.group for mine in seen for x in mine.exchanges].count(group)
                total = [x.group for x in op.exchanges].count(group)
                assert entered == (total if endpoint in group.members else 0), (op.id, index, endpoint)


@every_way
def test_gathers_are_seen_whole(source: str, target: str, fuse: bool, stream: bool) -> None:
    transition, views = programs(source, target, fuse, stream)
    gathers = {x for op in transition.ops for x in op.exchanges if isinstance(x, AllGather)}
    assert {x for p in views.values() for op in p.ops for x in op.exchanges if isinstance(x, AllGather)} == gathers


@every_way
def test_endpoints_submit_what_they_share_in_one_order(source: str, target: str, fuse: bool, stream: bool) -> None:
    """Otherwise two operations that share two ranks can deadlock."""
    _, views = programs(source, target, fuse, stream)
    for a, b in combinations(views.values(), 2):
        shared = {op.id for op in a.ops} & {op.id for op in b.ops}
        assert [op.id for op in a.ops if op.id in shared] == [op.id for op in b.ops if op.id in shared]


@every_way
def test_endpoints_make_the_communicators_that_they_share_in_one_order(
    source: str, target: str, fuse: bool, stream: bool
) -> None:
    _, views = programs(source, target, fuse, stream)
    for a, b in combinations(views.values(), 2):
        shared = set(a.groups) & set(b.groups)
        assert [g for g in a.groups if g in shared] == [g for g in b.groups if g in shared]


@every_way
def test_program_has_every_communicator_of_its_endpoint_and_no_other(
    source: str, target: str, fuse: bool, stream: bool
) -> None:
    transition, views = programs(source, target, fuse, stream)
    for endpoint, program in views.items():
        used = {x.group for op in transition.ops for x in op.exchanges if endpoint in x.group.members}
        used |= {op.stream.group for op in transition.ops if op.stream and endpoint in op.members}
        assert {group for group in program.groups if group.lane == TRANSFER} == used
        computing = {group for group in program.groups if group.lane != TRANSFER}
        assert computing == {GroupKey.of(e.endpoints, "compute") for e in transition.result if endpoint in e.endpoints}


@every_way
def test_view_names_what_its_endpoint_opens_and_frees(source: str, target: str, fuse: bool, stream: bool) -> None:
    transition, views = programs(source, target, fuse, stream)
    for op in transition.ops:
        for endpoint, program in views.items():
            mine = [view for view in program.ops if view.id == op.id]
            assert [e for view in mine for e in view.makes] == [e for e in op.makes if endpoint in e.endpoints]
            assert [s for view in mine for s in view.frees] == [s for s in op.frees if s.endpoint == endpoint]


@every_way
def test_all_members_of_a_stream_see_the_same_buckets(source: str, target: str, fuse: bool, stream: bool) -> None:
    """One that knew of other buckets would wait for the others for ever."""
    transition, views = programs(source, target, fuse, stream)
    for op in transition.ops:
        seen = {endpoint: view.stream for endpoint, program in views.items() for view in program.ops if view.id == op.id}
        assert seen == dict.fromkeys(op.members, op.stream)
        assert op.stream is None or set(op.stream.group.members) == set(op.members)


@every_way
def test_endpoint_sends_in_messages_what_its_peer_expects(source: str, target: str, fuse: bool, stream: bool) -> None:
    """Contents line up without a header: both ends cut the same boxes, in the same order."""
    _, views = programs(source, target, fuse, stream)
    for a, b in combinations(views, 2):
        for one, other in ((a, b), (b, a)):
            assert messages_between(views[one], one, other) == messages_between(views[other], one, other)


def messages_between(program: Program, sender: str, receiver: str) -> list[list[tuple[object, ...]]]:
    """The contents of each message from one endpoint to another, as one of them knows it."""
    found: list[list[tuple[object, ...]]] = []
    for op in program.ops:
        for exchange in op.exchanges:
            if isinstance(exchange, Pairwise):
                ends = (sender, receiver)
                moves = [m for m in exchange.moves if (m.source.endpoint, m.target.endpoint) == ends]
                boxes = [(move.source.unit, move.tensors, move.box) for move in moves]
            elif sender in exchange.group.members and receiver in exchange.group.members:
                parts = exchange.parts[exchange.group.members.index(sender)]
                boxes = [(part.unit, part.tensors, part.box) for part in parts]
            else:
                continue
            cut = messages(boxes, op.message_bytes)
            found += [[(exchange.group, piece.tensor.ref, piece.box) for piece in message] for message in cut]
    return found


def test_program_carries_the_state_of_the_stages_that_it_opens_units_of() -> None:
    _, views = programs("tp2 pp2 dp2", "tp4 pp2", fuse=True, stream=False)
    assert {tuple(program.states) for program in views.values()} == {("actor_training",)}
