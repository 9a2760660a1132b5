"""Several jobs on one pool over time: submitted, grown, shrunk, ended, through nodes that come, go and leave, and restarts.

Never is one device with two jobs; nobody is asked below its least; once everybody has left what it must, each has its count.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nereus.errors import NereusError
from nereus.policy.allotting import Allotment, allot, asked_for
from nereus.policy.grants import Ended, Freed, Granted, Grants, Launched, NodesSeen, Record, Withdrawn, after
from nereus.policy.seating import Node, PoolDevice, Shape
from tests.runtime.cluster_world import KIND, submitted


class Pool(RuleBasedStateMachine):
    """A controller without processes."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.grants = Grants()
        self.number = 0
        self.nodes: dict[str, Node] = {}

    def write(self, *records: Record) -> None:
        self.records += records
        self.grants = after(self.grants, records)

    def look(self, *, dies: bool = False) -> Allotment:
        """Decide, then launch what has devices, unless the controller dies between the two."""
        used = {job: frozenset(claim.seats) for job, claim in self.grants.claims.items()}
        found = allot(self.grants, KIND, used)
        self.write(*found.records)
        if not dies:
            granted = [claim for claim in self.grants.claims.values() if claim.is_running and not claim.is_launched]
            self.write(*(Launched(job=claim.told.job) for claim in granted))
        return found

    @property
    def living(self) -> list[str]:
        return [job for job, claim in self.grants.claims.items() if claim.ended is None]

    # What happens

    @rule(each=st.integers(1, 2), nodes=st.integers(1, 3), data=st.data(), is_live=st.booleans(), power=st.floats(0.1, 1.5))
    def submit(self, each: int, nodes: int, data: st.DataObject, is_live: bool, power: float) -> None:
        self.number += 1
        needed = data.draw(st.integers(1, each * nodes))
        shape = Shape(nodes, each, False)
        self.write(submitted(f"j{self.number}", shape, needed, is_live=is_live, power=power))

    @rule(devices=st.integers(0, 4))
    def a_node_comes(self, devices: int) -> None:
        name = f"n{len(self.records)}"
        self.nodes[name] = Node(id=name, devices=devices)
        self.write(NodesSeen(resource=KIND, nodes=tuple(self.nodes.values())))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), is_notice=st.booleans())
    def a_node_goes(self, data: st.DataObject, is_notice: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        if is_notice:
            self.nodes[name] = Node(id=name, devices=self.nodes[name].devices, is_leaving=True, gone_s=1.0)
        else:
            del self.nodes[name]
        self.write(NodesSeen(resource=KIND, nodes=tuple(self.nodes.values())))

    @rule(dies=st.booleans())
    def a_look(self, dies: bool) -> None:
        self.look(dies=dies)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def a_job_leaves_a_device(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.living))
        claim = self.grants.claims[job]
        notices = sorted(self.grants.notices(claim))
        if claim.is_launched and notices:
            self.write(Freed(job=job, places=(data.draw(st.sampled_from(notices)),)))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def a_job_ends(self, data: st.DataObject) -> None:
        self.write(Ended(job=data.draw(st.sampled_from(self.living)), state="finished", reason=""))

    @rule()
    def the_controller_starts_again(self) -> None:
        again = after(Grants(), self.records)
        assert again == self.grants
        self.grants = again

    @rule()
    def everybody_leaves_what_it_must(self) -> None:
        """Look and let them leave until nothing changes: then each has its count, as far as nodes allow."""
        for _ in range(20):
            found = self.look()
            freed = [
                Freed(job=job, places=tuple(sorted(places)))
                for job in self.living
                if (places := self.grants.notices(self.grants.claims[job]))
            ]
            self.write(*freed)
            if not found.records and not freed:
                break
        else:
            raise AssertionError("the pool does not settle")
        capacity = sum(node.devices for node in self.nodes.values() if not node.is_leaving)
        enough = sum(self.grants.claims[job].least for job in found.counts) <= capacity
        for job, count in found.counts.items():
            claim = self.grants.claims[job]
            has = len(self.grants.staying(claim))
            if enough and claim.told.is_live:
                assert has <= count or claim.is_queued
            if enough and claim.told.shape.each == 1 and not found.waiting and claim.told.is_live:
                assert has == count, f"{job} has {has} of {count}"
        idle = capacity - len(self.grants.taken(KIND))
        assert idle >= 0
        for job, reason in found.waiting.items():
            claim = self.grants.claims[job]
            assert claim.is_queued
            assert reason
        assert not {job for job in self.living if self.grants.claims[job].is_queued}.difference(found.waiting)

    # What is always so

    @invariant()
    def no_device_is_with_two_jobs(self) -> None:
        devices = [seat for claim in self.grants.of_kind(KIND) for seat in claim.seats.values()]
        assert len(devices) == len(set(devices))
        assert set(devices) <= {seat for node in self.nodes.values() for seat in node.all}

    @invariant()
    def an_ended_job_has_nothing(self) -> None:
        assert not [c for c in self.grants.claims.values() if c.ended is not None and c.seats]

    @invariant()
    def a_job_that_has_not_begun_has_all_that_it_needs_or_nothing(self) -> None:
        for claim in self.grants.of_kind(KIND):
            assert claim.is_launched or not claim.seats or set(claim.told.needed) <= set(claim.seats)

    @invariant()
    def nobody_is_asked_below_its_least(self) -> None:
        withdrawn = {record.job for record in self.records[-1:] if isinstance(record, Withdrawn)}
        for job in withdrawn:
            claim = self.grants.claims[job]
            assert len(self.grants.staying(claim)) >= claim.least

    @invariant()
    def a_fixed_job_is_never_asked_to_leave(self) -> None:
        for record in self.records:
            assert not isinstance(record, Withdrawn) or self.grants.claims[record.job].told.is_live


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = Pool.TestCase


def pool(*devices: int) -> Pool:
    made = Pool()
    for size in devices:
        made.a_node_comes(size)
    return made


def test_a_second_job_gets_its_share_once_the_first_has_left_it_and_all_when_that_ends() -> None:
    made = pool(2, 2)
    made.write(submitted("a", Shape(2, 2, False), 2))
    made.look()
    made.look()
    assert len(made.grants.claims["a"].seats) == 4
    made.write(submitted("b", Shape(2, 2, False), 2))
    first = made.look()
    assert "have not left theirs yet" in first.waiting["b"]
    made.everybody_leaves_what_it_must()
    assert [len(made.grants.claims[job].seats) for job in "ab"] == [2, 2]
    made.write(Ended(job="a", state="finished", reason=""))
    made.everybody_leaves_what_it_must()
    assert len(made.grants.claims["b"].seats) == 4


def test_who_cannot_be_served_says_why_and_blocks_nobody_unless_it_could_be_served_later() -> None:
    made = pool(4)
    made.write(submitted("huge", Shape(3, 2, False), 6))
    made.write(submitted("a", Shape(1, 3, False), 3, is_live=False))
    made.write(submitted("b", Shape(1, 2, False), 2, is_live=False))
    made.write(submitted("c", Shape(1, 1, False), 1, is_live=False))
    found = made.look()
    assert found.waiting == {
        "huge": "it needs 6 devices to start; the cluster has 4 that stay",
        "b": "it needs 2 devices to start; the least of the others leave 1 of 4",
        "c": "b came before it, and waits as well",
    }
    assert asked_for(made.grants, KIND, 0, None) == 6 + 3 + 2 + 1
    assert asked_for(made.grants, KIND, 0, 5) == 5
    assert asked_for(Grants(), KIND, 2, 5) == 2


def test_a_granted_job_that_loses_a_node_before_it_is_launched_waits_again_without_a_seat() -> None:
    made = pool(2, 2)
    made.write(submitted("a", Shape(2, 2, False), 4, is_live=False))
    made.look(dies=True)
    assert len(made.grants.claims["a"].seats) == 4
    made.nodes.popitem()
    made.write(NodesSeen(resource=KIND, nodes=tuple(made.nodes.values())))
    assert made.grants.claims["a"].is_queued
    assert made.grants.taken(KIND) == set()
    assert made.look().waiting == {"a": "it needs 4 devices to start; the cluster has 2 that stay"}
    made.a_node_comes(2)
    made.look()
    assert made.grants.claims["a"].is_launched


def test_a_launched_job_that_loses_a_node_keeps_the_others() -> None:
    made = pool(2, 2)
    made.write(submitted("a", Shape(2, 2, False), 4))
    made.look()
    made.nodes.popitem()
    made.write(NodesSeen(resource=KIND, nodes=tuple(made.nodes.values())))
    assert len(made.grants.claims["a"].seats) == 2


def test_a_device_that_is_taken_is_refused() -> None:
    made = pool(1)
    for job in "ab":
        made.write(submitted(job, Shape(1, 1, False), 1))
    seat = {0: PoolDevice(next(iter(made.nodes)), 0)}
    made.write(Granted(job="a", seats=seat))
    with pytest.raises(NereusError, match="must not be granted"):
        made.write(Granted(job="b", seats=seat))


@pytest.mark.parametrize(("serial", "count"), [(1.0, 1), (0.55, 2), (0.4, 4), (0.0, 8)])
def test_more_devices_are_asked_for_the_better_a_job_scales(serial: float, count: int) -> None:
    # Amdahl: a step takes s + (1 - s) / n. The device after n brings (1 - s) / (1 + s n) of what one of n does, and is worth
    # it down to a quarter: up to n = (4 (1 - s) - 1) / s.
    made = pool()
    told = submitted("a", Shape(4, 2, False), 1)
    made.write(replace(told, seconds={n: serial + (1 - serial) / n for n in range(1, 9)}))
    assert asked_for(made.grants, KIND, 0, None) == count
