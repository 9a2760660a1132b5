"""A hundred random transitions in one process tree leave nothing behind: no group, no thread, no file, no memory."""

from __future__ import annotations

import time
from random import Random
from typing import NamedTuple

import pytest

from nereus.emu.unit import Emu
from nereus.layout.catalog import EndpointId, StateSpec
from nereus.transition.collectives import GroupKey
from tests.builders import STAGE, degrees, make_emus, make_layout
from tests.transport.carrying import all_equal, plan_of, transition_to
from tests.transport.chain import MAX_DEVICES, MODES, START, candidates
from tests.transport.fleet import Fleet
from tests.transport.models import small_state

pytestmark = pytest.mark.gloo

WARM_UP, NUM_TRANSITIONS = 10, 100

GROWTH = 1.02
"""Of memory in RAM; measured are 1.006, most of it the allocator's, and 3 KB a transition after that."""

CLOSE_S = 5.0
"""How long the threads and sockets of groups that were dropped may take to go."""


class Held(NamedTuple):
    """What a process holds of the operating system."""

    files: int
    threads: int
    resident_bytes: int


def held(fleet: Fleet) -> dict[EndpointId, Held]:
    handles = fleet.call_all(fleet.endpoints, "open_handles")
    resident = fleet.call_all(fleet.endpoints, "resident_bytes")
    return {endpoint: Held(*handles[endpoint], resident[endpoint]) for endpoint in fleet.endpoints}


def settled(fleet: Fleet, before: dict[EndpointId, Held]) -> dict[EndpointId, Held]:
    """What is held once the threads of groups that were dropped have ended."""
    deadline = time.monotonic() + CLOSE_S
    while True:
        after = held(fleet)
        if time.monotonic() > deadline or all(after[e].threads <= before[e].threads for e in after):
            return after
        time.sleep(0.05)


def change(fleet: Fleet, emus: tuple[Emu, ...], state: StateSpec, random: Random) -> tuple[Emu, ...]:
    """One random transition, some of whose groups are kept for the next one."""
    text = random.choice(candidates())
    size = make_layout(text).size * degrees(text)["dp"]
    plan = plan_of(emus, text, sorted(random.sample(range(MAX_DEVICES), size)))
    epoch = fleet.next_epoch()
    transition = transition_to(emus, plan, state, epoch, random.choice(MODES))
    fleet.install(transition.ops, {STAGE: state}, epoch)
    assert fleet.run_dag(transition) == transition.num_bytes
    groups: set[GroupKey] = {group for op in transition.ops for group in op.groups}
    fleet.bind(transition.result, {group for group in sorted(groups) if random.random() < 0.5})
    return transition.result


def test_hundred_random_transitions_leave_nothing_behind(fleet: Fleet) -> None:
    state, random = small_state(), Random(7)
    emus = make_emus(START, epoch=fleet.next_epoch())
    fleet.seed(emus, state)
    first = fleet.digests(emus, state)
    before: dict[EndpointId, Held] = {}
    for number in range(1, NUM_TRANSITIONS + 1):
        emus = change(fleet, emus, state, random)
        assert all_equal([*first, *fleet.digests(emus, state)]), f"transition {number}"
        if number == WARM_UP:
            fleet.bind(emus)
            time.sleep(0.5)
            before = held(fleet)
    fleet.bind(emus)
    assert set(fleet.call_all(fleet.endpoints, "groups").values()) == {frozenset()}
    for endpoint, after in settled(fleet, before).items():
        assert after.files <= before[endpoint].files, endpoint
        assert after.threads <= before[endpoint].threads, endpoint
        assert after.resident_bytes <= GROWTH * before[endpoint].resident_bytes, endpoint
    assert fleet.wrong_tensors(emus, state, state) == []
