"""The pool over time against its trace: a brute force that looks at every second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereus.sim.timeline import Change, Timeline
from nereus.spec.traces import AvailabilityTrace

POOL = 6


@st.composite
def traces(draw: st.DrawFn) -> AvailabilityTrace:
    """Whole seconds up to 60, counts from none to more than the pool has."""
    times = sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=12)))
    return AvailabilityTrace(tuple((float(time), draw(st.integers(0, POOL + 2))) for time in times))


notices = st.sampled_from([0.0, 0.5, 3.0, 1000.0])


@given(traces(), notices)
def test_as_many_devices_are_there_as_the_trace_has_at_every_moment(trace: AvailabilityTrace, notice_s: float) -> None:
    timeline, begin = Timeline.of(trace, POOL, notice_s), trace.points[0][0]
    for half_seconds in range(2 * int(trace.duration_s) + 1):
        time = half_seconds / 2
        assert len(timeline.there(time)) == min(trace.at(begin + time), POOL)


@given(traces(), notices)
def test_devices_leave_and_arrive_once_at_a_time(trace: AvailabilityTrace, notice_s: float) -> None:
    """Nobody arrives who is there, nobody goes who is not, and events come in order."""
    timeline = Timeline.of(trace, POOL, notice_s)
    there = set(timeline.start)
    assert list(timeline.events) == sorted(timeline.events)
    for event in timeline.events:
        named = set(event.devices)
        assert len(named) == len(event.devices) > 0
        assert named <= set(range(POOL))
        if event.change is Change.ARRIVED:
            assert not named & there
            there |= named
        else:
            assert named <= there
            there -= named if event.change is Change.GONE else set()


@given(traces(), notices)
def test_every_departure_is_noticed_in_time_and_never_before_the_device_was_there(
    trace: AvailabilityTrace, notice_s: float
) -> None:
    """A device that is not there for as long as a notice is told when it arrives; without notices nothing is told."""
    timeline = Timeline.of(trace, POOL, notice_s)
    arrived = dict.fromkeys(timeline.start, 0.0)
    known: dict[int, float] = {}
    for event in timeline.events:
        for device in event.devices:
            if event.change is Change.ARRIVED:
                arrived[device] = event.time_s
            elif event.change is Change.NOTICE:
                latest = max(arrived[other] for other in event.devices)
                assert event.time_s == pytest.approx(max(event.gone_s - notice_s, latest))
                known[device] = event.gone_s
            elif notice_s:
                assert known.pop(device) == event.time_s
    assert not known


@given(traces(), st.floats(0, 60), st.floats(0, 60))
def test_between_is_what_a_scan_of_all_events_finds(trace: AvailabilityTrace, after: float, until: float) -> None:
    timeline = Timeline.of(trace, POOL, 3.0)
    assert timeline.between(after, until) == tuple(e for e in timeline.events if after < e.time_s <= until)


def test_the_last_devices_leave_and_the_first_that_are_missing_arrive() -> None:
    timeline = Timeline.of(AvailabilityTrace(((5.0, 4), (10.0, 2), (20.0, 3), (30.0, 3))), POOL, 2.0)
    assert timeline.start == (0, 1, 2, 3)
    told = [(event.time_s, event.change, event.devices) for event in timeline.events]
    assert told == [(3.0, Change.NOTICE, (2, 3)), (5.0, Change.GONE, (2, 3)), (15.0, Change.ARRIVED, (2,))]
    assert timeline.duration_s == 25.0


def test_counts_above_the_pool_are_the_whole_pool() -> None:
    assert Timeline.of(AvailabilityTrace(((0.0, 9), (10.0, 7), (20.0, 6))), POOL, 2.0).events == ()
