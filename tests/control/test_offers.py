"""What a job that follows a pool of nodes is told: the difference between what it knows and what it may use, and no more."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nereus.control.effects import Publish
from nereus.control.events import EndpointDied, PlanReady, StepLost
from nereus.control.offer import Offer, offer_of_all, pool_change, seats_after, used
from nereus.control.phases import Planning, Steady
from nereus.emu.plan import DeviceId
from nereus.policy.seating import Node, PoolDevice, Seats, Shape
from nereus.runtime.tallies import Tallies
from tests.control.harness import Core
from tests.runtime.loop import adaptive_config

FAR_S = 1e9
"""A time that is not reached."""


def pool_devices(*places: int) -> dict[DeviceId, PoolDevice]:
    """Each on a pool device of its own."""
    return {place: PoolDevice("a", place) for place in places}


class Following:
    """A job on four devices, and what it was told of its pool."""

    def __init__(self) -> None:
        self.core = Core(replace(adaptive_config(), pool_is_live=True)).start(range(4))
        self.told: Seats = pool_devices(*range(4))

    def look(self, offer: Offer, now_s: float = 0.0) -> bool:
        """Tell the job what has changed; whether anything has."""
        change = pool_change(self.core.state, self.told, offer, now_s)
        if change is None:
            return False
        self.told = seats_after(self.told, change, offer)
        self.core.post(change)
        return True

    def step(self) -> None:
        self.core.boundary()
        self.core.settle()


def test_the_same_offer_again_changes_nothing() -> None:
    job = Following()
    assert not job.look(Offer(seats=pool_devices(*range(4))))
    assert job.look(Offer(seats=pool_devices(*range(6))))
    assert not job.look(Offer(seats=pool_devices(*range(6))))
    job.core.settle()
    assert job.core.state.usable == tuple(range(6))


def test_a_job_is_told_nothing_while_it_starts() -> None:
    core = Core(replace(adaptive_config(), pool_is_live=True))
    assert pool_change(core.state, pool_devices(0, 1), Offer(seats={}), 0.0) is None


def test_a_device_that_must_be_left_is_given_back_once_nothing_is_on_it_and_not_before() -> None:
    job = Following()
    victim = max(job.core.state.plan.devices)
    offer = Offer(seats=pool_devices(*range(4)), leaving={victim: None})
    assert job.look(offer)
    assert job.core.state.leaving == {victim: job.core.state.step + 1 + job.core.state.config.policy.notice_steps}
    given_back = 0
    for _ in range(8):
        on_it = victim in used(job.core.state)
        had = victim in job.told
        job.look(offer)
        if had and victim not in job.told:
            assert not on_it, "units lay on it"
            given_back += 1
        job.step()
    assert given_back == 1
    assert victim not in job.told
    assert isinstance(job.core.state.phase, Steady)
    assert len(job.core.records) == 1


def test_a_device_without_a_unit_is_told_that_it_must_be_left_before_it_goes_and_does_not_count_as_lost() -> None:
    job = Following()
    job.look(Offer(seats=pool_devices(*range(6))))
    job.core.settle()
    idle = (set(job.core.state.usable) - used(job.core.state)).pop()
    offer = Offer(seats=pool_devices(*range(6)), leaving={idle: None})
    while job.look(offer):
        pass
    assert idle not in job.told
    tallies = Tallies()
    for effect in job.core.effects:
        if isinstance(effect, Publish):
            tallies.count(effect.news)
    assert (tallies.departed, tallies.lost) == (1, 0)


def test_a_job_that_finds_no_plan_without_a_device_that_another_job_is_to_have_goes_on_with_it() -> None:
    job = Following()
    job.core.plans = False
    victim = max(job.core.state.plan.devices)
    offer = Offer(seats=pool_devices(*range(4)), leaving={victim: None})
    for _ in range(10):
        while job.look(offer):
            pass
        job.step()
        if isinstance(job.core.state.phase, Planning):
            job.core.post(PlanReady(cycle=job.core.state.cycle, proposals=(), current_l_step_s=1.0, seconds=0.0))
        assert isinstance(job.core.state.phase, Steady)
    assert job.core.state.step == 10
    assert job.core.releases == 11
    job.core.plans = True
    for _ in range(4):
        while job.look(offer):
            pass
        job.step()
    assert victim not in job.told


def test_a_notice_with_an_end_is_kept_in_steps_of_the_last_ones_length() -> None:
    job = Following()
    job.step()
    step_s, victim = job.core.state.recent_s[-1], max(job.core.state.plan.devices)
    job.look(Offer(seats=pool_devices(*range(4)), leaving={victim: 1000.0 + 5.5 * step_s}), now_s=1000.0)
    assert job.core.state.leaving == {victim: job.core.state.step + 1 + 5}


def test_a_notice_that_is_shorter_than_a_step_leaves_the_boundary_of_the_step_that_runs() -> None:
    job = Following()
    job.step()
    victim = max(job.core.state.plan.devices)
    job.look(Offer(seats=pool_devices(*range(4)), leaving={victim: 1000.0}), now_s=1000.0)
    assert job.core.state.leaving == {victim: job.core.state.step + 2}
    job.step()
    assert victim not in used(job.core.state)


def test_a_device_whose_node_died_is_gone_and_one_in_its_place_arrives_after_it() -> None:
    job = Following()
    job.step()
    job.core.post(EndpointDied(endpoint="d3.0", during="a step"))
    job.core.post(StepLost(endpoint="d3.0", during="a step"))
    other = Offer(seats={**pool_devices(0, 1, 2), 3: PoolDevice("b", 0)})
    assert job.look(other)
    assert 3 not in job.told
    assert 3 not in job.core.state.broken
    assert job.look(other)
    assert job.told[3] == PoolDevice("b", 0)
    job.core.settle()
    assert 3 in job.core.state.usable


nodes = st.lists(
    st.builds(
        lambda id, devices, leaving: Node(id=id, devices=devices, is_leaving=leaving, gone_s=FAR_S if leaving else None),
        st.sampled_from("abcd"),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda node: node.id,
)


@given(st.lists(nodes, min_size=1, max_size=4))
def test_a_job_alone_keeps_what_it_has_as_long_as_it_is_there_and_gets_what_comes(story: list[list[Node]]) -> None:
    shape, told = Shape(2, 3, False), dict[DeviceId, PoolDevice]()
    for there in story:
        offer = offer_of_all(shape, told, there, shape.places)
        staying = {seat for node in there if not node.is_leaving for seat in node.all}
        everything = {seat for node in there for seat in node.all}
        assert {place: seat for place, seat in told.items() if seat in everything}.items() <= offer.seats.items()
        assert len(set(offer.seats.values())) == len(offer.seats)
        assert set(offer.leaving) == {place for place, seat in offer.seats.items() if seat not in staying}
        assert set(offer.seats).difference(told) <= {p for p, seat in offer.seats.items() if seat in staying}
        told = dict(offer.seats)
