"""The pool of communicators: made once, used again, dropped without a trace, broken for everyone or for no one."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import HashStore, TCPStore

from nereus.errors import StoreError, TransitionFailed
from nereus.transition.collectives import COMPUTE, TRANSFER, GroupKey
from nereus.transport.communicators import Communicators
from nereus.transport.process_group import clone_store, end_batch, new_process_group, start_batch
from tests.builders import endpoints_of
from tests.transport.fleet import Fleet
from tests.transport.worker import CPU

ALL = GroupKey.of(endpoints_of(range(8)), COMPUTE)
PAIR = GroupKey.of(endpoints_of([0, 1]), TRANSFER)
TRIO = GroupKey.of(endpoints_of([0, 1, 2]), COMPUTE)


def alone() -> Communicators:
    return Communicators(HashStore(), "d0.0", CPU, timeout_s=5.0)


def test_group_of_one_does_nothing_to_its_tensors() -> None:
    pool, key = alone(), GroupKey(("d0.0",), COMPUTE)
    assert pool.ensure([key], "e1") == (1, 0)
    group, x = pool.get(key), torch.arange(3.0)
    out = [torch.zeros(3)]
    group.all_reduce(x)
    group.all_gather(out, x)
    group.broadcast(x, "d0.0")
    group.barrier()
    assert out[0].tolist() == x.tolist() == [0, 1, 2]
    with pytest.raises(StoreError, match="nobody to send to"):
        group.batch().__enter__()


def test_unknown_group_is_refused_with_what_to_do() -> None:
    pool = alone()
    with pytest.raises(StoreError, match="never installed, was dropped, or was aborted"):
        pool.get(PAIR)
    with pytest.raises(StoreError, match="is not in group"):
        pool.ensure([GroupKey.of(("d1.0", "d2.0"), COMPUTE)], "e1")


def test_group_whose_member_does_not_come_is_given_up_by_name() -> None:
    pool = Communicators(HashStore(), "d0.0", CPU, timeout_s=0.2)
    with pytest.raises(TransitionFailed, match=r"\['d1.0'\] did not come within 0.2 s"):
        pool.ensure([PAIR], "e1")
    assert pool.keys() == frozenset()


def test_private_names_of_torch_that_a_group_is_made_with_are_there() -> None:
    group = new_process_group("pin", HashStore(), 0, 1, CPU, 5.0)
    x = torch.ones(2)
    group.allreduce([x]).wait()
    assert x.tolist() == [1, 1]
    start_batch(group, CPU)
    assert end_batch(group, CPU) is None
    assert callable(group._start_coalescing)
    assert callable(group._end_coalescing)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clone_store(store).set("k", "v")
    assert store.get("k") == b"v"


@pytest.mark.gloo
def test_collectives_give_what_a_single_process_would(fleet: Fleet) -> None:
    fleet.call_all(ALL.members, "ensure", [ALL], f"e{fleet.next_epoch()}")
    sums = fleet.each({e: (ALL, float(rank)) for rank, e in enumerate(ALL.members)}, "all_reduce")
    assert set(sums.values()) == {28.0}
    for answer in fleet.call_all(ALL.members, "gather", ALL).values():
        assert answer == [0, 1, 2, 3, 4, 5, 6, 7, 7]


@pytest.mark.gloo
def test_large_messages_in_a_ring_do_not_deadlock(fleet: Fleet) -> None:
    fleet.call_all(ALL.members, "ensure", [ALL], f"e{fleet.next_epoch()}")
    answers = fleet.call_all(ALL.members, "ring", ALL, 1 << 20)
    assert answers == {member: [ALL.members[rank - 1]] for rank, member in enumerate(ALL.members)}


@pytest.mark.gloo
def test_overlapping_groups_given_in_any_order_are_made_without_deadlock(fleet: Fleet) -> None:
    keys = {GroupKey.of(endpoints_of(pair), TRANSFER) for pair in [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]}
    tag = f"e{fleet.next_epoch()}"
    commands = {}
    for rank, endpoint in enumerate(endpoints_of(range(4))):
        mine = sorted((key for key in keys if endpoint in key.members), reverse=bool(rank % 2))
        commands[endpoint] = (mine, tag)
    assert set(fleet.each(commands, "ensure").values()) == {(3, 0)}
    assert set(fleet.each({e: (k, "later") for e, (k, _) in commands.items()}, "ensure").values()) == {(0, 3)}


@pytest.mark.gloo
def test_hundred_rounds_of_making_and_dropping_leave_nothing_open(fleet: Fleet) -> None:
    tag = f"e{fleet.next_epoch()}"  # the same one throughout: a group that was dropped is made under another name

    def round_trip() -> None:
        assert set(fleet.call_all(PAIR.members, "ensure", [PAIR], tag).values()) == {(1, 0)}
        assert set(fleet.call_all(PAIR.members, "all_reduce", PAIR, 1.0).values()) == {2.0}
        fleet.call_all(PAIR.members, "drop_groups")

    round_trip()
    before = fleet.call_all(PAIR.members, "open_handles")
    for _ in range(100):
        round_trip()
    for endpoint, (files, threads) in fleet.call_all(PAIR.members, "open_handles").items():
        assert files <= before[endpoint][0] + 2
        assert threads <= before[endpoint][1] + 2


@pytest.mark.gloo
def test_group_that_one_member_broke_is_made_anew_by_all(fleet: Fleet) -> None:
    fleet.call_all(TRIO.members, "ensure", [TRIO], f"e{fleet.next_epoch()}")
    fleet.call(TRIO.members[0], "abort")
    fleet.post(TRIO.members[0], "all_reduce", TRIO, 1.0)
    assert isinstance(fleet.failure(TRIO.members[0]), StoreError)
    assert TRIO in fleet.call(TRIO.members[1], "groups")
    assert set(fleet.call_all(TRIO.members, "ensure", [TRIO], f"e{fleet.next_epoch()}").values()) == {(1, 0)}
    assert set(fleet.call_all(TRIO.members, "all_reduce", TRIO, 1.0).values()) == {3.0}
