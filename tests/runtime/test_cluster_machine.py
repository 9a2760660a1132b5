"""Jobs on a cluster over time, with calls that fail and a controller that dies in the middle of any of them.

Never do two runners have one device; what was taken in stays; what ended stays so; each job is started once.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nereus.policy.seating import Node, Shape
from nereus.runtime.cluster_driver import LINGER_S, ClusterDriver
from nereus.runtime.cluster_ports import Outcome
from tests.runtime.cluster_world import KIND, Clock, Dies, FakeCluster, driver_of, submitted

CALLS = st.sampled_from((0, 1, 2, 2, 2, 3, 3, 4, 5, 6))
"""Which of a look's calls fails: the first two look, the next end runners or start jobs, if there are any."""

OVER = ("finished", "failed", "cancelled")


class Cluster(RuleBasedStateMachine):
    """A ClusterDriver on a cluster without processes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="nereus-m-"))
        self.clock, self.cluster = Clock(), FakeCluster()
        self.driver: ClusterDriver = driver_of(self.folder, self.cluster, self.clock)
        self.names: list[str] = []
        self.over: dict[str, str] = {}
        self.num_nodes = 0

    def teardown(self) -> None:
        self.all_goes_well_for_a_while()
        self.driver.close()
        shutil.rmtree(self.folder)

    @property
    def running(self) -> list[str]:
        return sorted(job for job, runner in self.cluster.runners.items() if runner.outcome is None)

    # What happens to the controller

    @rule(each=st.integers(1, 2), nodes=st.integers(1, 2), is_live=st.booleans(), data=st.data())
    def somebody_submits(self, each: int, nodes: int, is_live: bool, data: st.DataObject) -> None:
        shape = Shape(nodes, each, False)
        self.names.append(
            self.driver.submit(submitted("job", shape, data.draw(st.integers(1, nodes * each)), is_live=is_live))
        )

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def somebody_cancels(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.names))
        is_told = self.driver.cancel(job, "an operator")
        assert is_told == (job not in self.over)

    @rule(seconds=st.sampled_from((1.0, 1.0, LINGER_S)))
    def it_looks(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.driver.look()
        assert self.driver.failed is None

    @rule(call=CALLS, after=st.booleans())
    def a_call_of_a_look_fails(self, call: int, after: bool) -> None:
        cluster = self.cluster
        cluster.fails_at, cluster.fails_with, cluster.fails_after = call, ConnectionError, after
        self.driver.look()
        assert (self.driver.failed is None) == (cluster.fails_at is not None)
        cluster.fails_at = None

    @rule(call=CALLS, after=st.booleans())
    def it_dies_in_a_look_and_is_started_again(self, call: int, after: bool) -> None:
        cluster = self.cluster
        cluster.fails_at, cluster.fails_with, cluster.fails_after = call, Dies, after
        with suppress(Dies):
            self.driver.look()
        cluster.fails_at = None
        self.driver.close()
        self.driver = driver_of(self.folder, cluster, self.clock)

    @rule()
    def the_disk_is_full_in_a_look(self) -> None:
        sql = self.driver._records._table.sql
        sql.execute("pragma query_only = on")
        self.driver.look()
        sql.execute("pragma query_only = off")

    # What happens on the cluster

    @rule(devices=st.integers(1, 4))
    def a_node_comes(self, devices: int) -> None:
        self.num_nodes += 1
        self.cluster.nodes[f"n{self.num_nodes}"] = Node(id=f"n{self.num_nodes}", devices=devices)

    @precondition(lambda self: self.cluster.nodes)
    @rule(data=st.data(), is_notice=st.booleans())
    def a_node_goes(self, data: st.DataObject, is_notice: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.cluster.nodes)))
        if is_notice:
            devices = self.cluster.nodes[name].devices
            self.cluster.nodes[name] = Node(id=name, devices=devices, is_leaving=True, gone_s=1.0)
        else:
            self.cluster.a_node_goes(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_job_hears_of_an_offer(self, data: st.DataObject) -> None:
        self.cluster.runners[data.draw(st.sampled_from(self.running))].hears()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_job_leaves_what_it_must(self, data: st.DataObject) -> None:
        self.cluster.runners[data.draw(st.sampled_from(self.running))].leaves()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_late=st.booleans())
    def a_runner_answers_late_or_in_time(self, data: st.DataObject, is_late: bool) -> None:
        self.cluster.runners[data.draw(st.sampled_from(self.running))].is_late = is_late

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(("finished", "failed", "dies")))
    def a_job_ends(self, data: st.DataObject, how: str) -> None:
        job = data.draw(st.sampled_from(self.running))
        runner = self.cluster.runners[job]
        if how == "dies":
            del self.cluster.runners[job]
            self.cluster.started.remove(job)  # where its start was not recorded, it is started again
        else:
            runner.outcome, runner.is_late, runner.seats = Outcome(how, ""), False, {}

    @rule()
    def all_goes_well_for_a_while(self) -> None:
        """Then nobody waits without a reason, and every runner is that of a job that is not over."""
        for _ in range(12):
            for runner in self.cluster.runners.values():
                runner.is_late = False
                runner.obeys()
            self.clock.now_s += LINGER_S
            self.driver.look()
            assert self.driver.failed is None
        states, grants = self.driver.situation.states(), self.driver.situation.grants
        assert set(self.cluster.runners) == {job for job, state in states.items() if state in ("starting", "running")}
        reasons = {view["job"]: view["reason"] for view in self.driver.situation.views(self.folder)}
        for job, state in states.items():
            assert state != "queued" or reasons[job]
            claim = grants.claims[job]
            if claim.told.is_live and state == "running":
                assert set(self.cluster.runners[job].seats.values()) == set(grants.staying(claim).values())

    # What is always so

    @invariant()
    def no_two_runners_have_one_device(self) -> None:
        ended = {job for job, state in self.driver.situation.states().items() if state in OVER}
        seats = [s for job, r in self.cluster.runners.items() if job not in ended for s in r.seats.values()]
        assert len(seats) == len(set(seats))

    @invariant()
    def whoever_is_started_has_what_was_granted(self) -> None:
        claims = self.driver.situation.grants.claims
        for job in self.running:
            granted = set(claims[job].seats.values())
            assert claims[job].ended is not None or set(self.cluster.runners[job].seats.values()) <= granted | self.gone()

    def gone(self) -> set[object]:
        """Devices that the records do not have any more since their node went."""
        there = {seat for node in self.cluster.nodes.values() for seat in node.all}
        known = {seat for node in self.driver.situation.grants.nodes.get(KIND, ()) for seat in node.all}
        return there - known

    @invariant()
    def nothing_that_was_taken_in_is_forgotten(self) -> None:
        assert list(self.driver.situation.grants.claims) == self.names

    @invariant()
    def what_is_over_stays_as_it_ended(self) -> None:
        states = self.driver.situation.states()
        assert self.over.items() <= states.items()
        self.over = {job: state for job, state in states.items() if state in OVER}

    @invariant()
    def no_job_is_started_twice(self) -> None:
        assert len(set(self.cluster.started)) == len(self.cluster.started)


Cluster.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCluster = Cluster.TestCase
