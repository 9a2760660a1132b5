"""Abort through the store: nothing stays blocked, whoever died. Rests on how Gloo behaves, so it is pinned here."""

from __future__ import annotations

import time
from threading import Event

import pytest
from torch.distributed import HashStore

from nereus.errors import StoreError, TransitionFailed
from nereus.transition.collectives import COMPUTE, GroupKey
from nereus.transport.abort import AbortWatch, await_aborts, request_abort
from tests.builders import endpoints_of
from tests.transport.fleet import Fleet

MEMBERS = endpoints_of(range(4))
KEY = GroupKey.of(MEMBERS, COMPUTE)
BOUND_S = 10.0
"""Far below the groups' time-out of 60 s, far above the 50 ms that an abort takes."""


def test_watch_calls_back_once_for_each_request() -> None:
    store, seen = HashStore(), Event()
    watch = AbortWatch(lambda: store, "d0.0", seen.set)
    watch.start()
    with pytest.raises(StoreError, match="runs already"):
        watch.start()
    for number in (1, 2):
        requests = request_abort(store, ["d0.0", "d1.0"])
        assert await_aborts(store, {"d0.0": requests["d0.0"]}, BOUND_S) == frozenset()
        assert await_aborts(store, requests, 0.05) == {"d1.0"}
        assert seen.is_set()
        seen.clear()
        watch.stop()
        assert watch.num_aborts == number
        watch.start()
    watch.stop()
    watch.stop()
    assert watch.num_aborts == 2
    assert watch.error is None


def test_watch_keeps_the_error_that_ended_it() -> None:
    store, ended = HashStore(), Event()

    def fail() -> None:
        ended.set()
        raise ValueError("no groups")

    watch = AbortWatch(lambda: store, "d0.0", fail)
    watch.start()
    request_abort(store, ["d0.0"])
    assert ended.wait(BOUND_S)
    watch.stop()
    assert isinstance(watch.error, ValueError)


@pytest.mark.gloo
def test_abort_frees_those_blocked_on_a_killed_member_and_they_can_go_on() -> None:
    fleet = Fleet(MEMBERS, timeout_s=60.0)
    try:
        fleet.call_all(MEMBERS, "ensure", [KEY], "e1")
        survivors = MEMBERS[:3]
        for endpoint in survivors:
            fleet.post(endpoint, "all_reduce", KEY, 1.0)
        fleet.processes[MEMBERS[3]].kill()
        start = time.monotonic()
        requests = request_abort(fleet.store, survivors)
        assert all(isinstance(fleet.failure(endpoint), RuntimeError | StoreError) for endpoint in survivors)
        assert await_aborts(fleet.store, requests, BOUND_S) == frozenset()
        assert time.monotonic() - start < BOUND_S
        smaller = GroupKey.of(survivors, COMPUTE)
        fleet.call_all(survivors, "ensure", [smaller], "e2")
        assert set(fleet.call_all(survivors, "all_reduce", smaller, 1.0).values()) == {3.0}
    finally:
        fleet.close()


@pytest.mark.gloo
@pytest.mark.parametrize("blocked", [1, 2, 3])
def test_abort_frees_those_blocked_on_a_live_member_that_never_comes(fleet: Fleet, blocked: int) -> None:
    fleet.call_all(MEMBERS, "ensure", [KEY], f"e{fleet.next_epoch()}")
    for endpoint in MEMBERS[:blocked]:
        fleet.post(endpoint, "all_reduce", KEY, 1.0)
    time.sleep(0.1)
    start = time.monotonic()
    requests = request_abort(fleet.store, MEMBERS)
    assert all(isinstance(fleet.failure(endpoint), RuntimeError) for endpoint in MEMBERS[:blocked])
    assert await_aborts(fleet.store, requests, BOUND_S) == frozenset()
    assert time.monotonic() - start < BOUND_S
    fleet.call_all(MEMBERS, "ensure", [KEY], f"e{fleet.next_epoch()}")
    assert set(fleet.call_all(MEMBERS, "all_reduce", KEY, 1.0).values()) == {4.0}


@pytest.mark.gloo
def test_abort_ends_the_set_up_of_a_group_whose_member_does_not_come(fleet: Fleet) -> None:
    tag = f"e{fleet.next_epoch()}"
    for endpoint in MEMBERS[:3]:
        fleet.post(endpoint, "ensure", [KEY], tag)
    time.sleep(0.1)
    start = time.monotonic()
    requests = request_abort(fleet.store, MEMBERS[:3])
    assert all(isinstance(fleet.failure(endpoint), TransitionFailed) for endpoint in MEMBERS[:3])
    assert await_aborts(fleet.store, requests, BOUND_S) == frozenset()
    assert time.monotonic() - start < BOUND_S
