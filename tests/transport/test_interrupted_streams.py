"""A stream that breaks goes on where it was, or is undone: nothing is lost, whichever bucket it was and wherever in it."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pytest

from nereus.transition.streaming import undone
from tests.builders import ENDPOINT_OF, STAGE
from tests.transport.carrying import all_equal, check_ledgers, check_peaks
from tests.transport.faulty_store import Verb
from tests.transport.fleet import Fleet
from tests.transport.interrupting import Streaming, abort_and_mend

pytestmark = pytest.mark.gloo

PAIRS = [
    ("tp2 pp2 dp2", "tp1 pp4 dp2"),
    ("tp4", "tp1 fsdp2 dp2"),
    ("tp2 dp3 zero1", "tp1 pp2 dp3 zero1"),
]


def check_end(job: Streaming) -> None:
    """All that the transition makes is the oracle's, and it is all that stays."""
    fleet, result = job.fleet, job.transition.result
    check_peaks(fleet, job.transition, job.current, job.state)
    assert fleet.wrong_tensors(result, job.state, job.state) == []
    assert all_equal([*job.before, *fleet.digests(result, job.state)])
    fleet.bind(result)
    check_ledgers(fleet, result, job.state)


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("verb", ["open", "land"])
@pytest.mark.parametrize("at", ["first", "middle", "last"])
def test_stream_goes_on_from_the_bucket_that_broke(fleet: Fleet, source: str, target: str, verb: Verb, at: str) -> None:
    job = Streaming.installed(fleet, source, target)
    count = len(job.stream.buckets)
    assert count > 3
    bucket = {"first": 0, "middle": count // 2, "last": count - 1}[at]
    job.interrupt(verb, bucket)
    assert job.run() == job.bytes_from(bucket)
    assert job.units_held() == job.units_made()
    job.run_the_rest()
    check_end(job)


@pytest.mark.parametrize("verb", ["open", "land"])
def test_stream_is_ended_by_a_program_of_a_later_epoch(fleet: Fleet, verb: Verb) -> None:
    """As the controller does it after an abort: all are quiet, and the rest runs under another name."""
    job = Streaming.installed(fleet, *PAIRS[0])
    job.interrupt(verb, 2)
    fleet.call_all(job.op.members, "settle")
    assert all(fleet.call_all(job.op.members, "is_whole_or_absent").values())
    again = replace(job.op, id=f"again.{job.op.id}")
    fleet.install((again, *job.transition.ops[1:]), {STAGE: job.state}, fleet.next_epoch())
    assert job.run(again) == job.bytes_from(2)
    job.run_the_rest()
    check_end(job)


def test_stream_may_break_again_and_again(fleet: Fleet) -> None:
    job = Streaming.installed(fleet, *PAIRS[0])
    for bucket, verb in ((1, "open"), (1, "land"), (3, "land"), (4, "open")):
        job.interrupt(verb, bucket)
    assert job.run() == job.bytes_from(4)
    job.run_the_rest()
    check_end(job)


@pytest.mark.parametrize("seed", range(4))
def test_stream_that_is_aborted_at_any_moment_goes_on(fleet: Fleet, seed: int) -> None:
    job, random = Streaming.installed(fleet, *PAIRS[seed % len(PAIRS)], bucket_bytes=512), Random(seed)
    assert len(job.stream.buckets) > 20
    for _ in range(4):
        for endpoint in job.op.members:
            fleet.post(endpoint, "run", job.op.id)
        time.sleep(random.uniform(0.0, 0.02))
        abort_and_mend(fleet, job.op, job.op.members)
    job.run()
    job.run_the_rest()
    result = job.transition.result
    assert fleet.wrong_tensors(result, job.state, job.state) == []
    assert all_equal([*job.before, *fleet.digests(result, job.state)])
    fleet.bind(result)
    check_ledgers(fleet, result, job.state)


@pytest.mark.parametrize("at", ["first", "middle"])
def test_stream_that_broke_while_it_released_a_bucket_goes_on_and_releases_it(fleet: Fleet, at: str) -> None:
    job = Streaming.installed(fleet, *PAIRS[0])
    bucket = {"first": 0, "middle": len(job.stream.buckets) // 2}[at]
    job.interrupt("release", bucket)
    assert job.run() <= job.bytes_from(bucket + 1)
    assert job.units_held() == job.units_made()
    job.run_the_rest()
    check_end(job)


def check_undone(job: Streaming, num_done: int) -> None:
    """Taken back, the old units are what they were, and all that stays."""
    fleet = job.fleet
    back = undone(job.op, num_done, job.ended, job.state, {})
    fleet.install([back], {STAGE: job.state}, fleet.next_epoch())
    assert job.run(back) == back.num_bytes
    assert fleet.wrong_tensors(job.current, job.state, job.state) == []
    assert all_equal([*job.before, *fleet.digests(job.current, job.state)])
    fleet.bind(job.current)
    check_ledgers(fleet, job.current, job.state)


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("verb", ["open", "land"])
@pytest.mark.parametrize("at", ["one", "half", "all but one"])
def test_stream_is_undone_after_some_buckets(fleet: Fleet, source: str, target: str, verb: Verb, at: str) -> None:
    job = Streaming.installed(fleet, source, target)
    count = len(job.stream.buckets)
    num_done = {"one": 1, "half": count // 2, "all but one": count - 1}[at]
    job.interrupt(verb, num_done)
    check_undone(job, num_done)


def test_stream_is_undone_while_some_members_have_released_a_bucket_and_others_have_not(fleet: Fleet) -> None:
    job = Streaming.installed(fleet, *PAIRS[0])
    job.interrupt("release", 2)
    check_undone(job, 3)


@pytest.mark.parametrize(
    ("source", "target"), [("tp3", "tp1 pp2"), ("tp4 pp2", "tp2 dp3")], ids=["a later Destroy", "its own Destroy"]
)
def test_stream_that_frees_only_a_part_of_a_unit_is_undone(fleet: Fleet, source: str, target: str) -> None:
    job = Streaming.installed(fleet, source, target)
    job.interrupt("open", 1)
    check_undone(job, 1)


def test_stream_releases_what_the_same_operation_released_at_once(fleet: Fleet) -> None:
    job = Streaming.installed(fleet, "tp4 pp2", "tp2 dp3")
    job.run()
    assert job.units_held() == job.units_made()


def test_stream_that_broke_at_its_very_end_on_one_member_goes_on() -> None:
    fleet = Fleet(ENDPOINT_OF[device] for device in range(2))
    try:
        job = Streaming.installed(fleet, "tp2", "tp1 dp2")
        job.interrupt("release", len(job.stream.buckets) - 1)
        for endpoint in job.op.members:
            fleet.post(endpoint, "run", job.op.id)
        assert fleet.failure(job.op.members[1]) is None
        assert fleet.failure(job.op.members[0]) is None
        assert job.units_held() == job.units_made()
        check_end(job)
    finally:
        fleet.settle()
        fleet.close()
