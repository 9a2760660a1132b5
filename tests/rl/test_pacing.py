"""A paced thread takes its CPU time divided by its speed; waiting for others is never stretched; lateness is counted.

The clock is a made one, so that every figure is exact. What runs on the real clock asserts lower bounds alone: whatever else
runs on the machine only adds to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from nereus.rl import pacing
from nereus.rl.pacing import SHORTEST_SLEEP_S, Pacer


@dataclass
class Clock:
    """The clocks of one thread, in seconds: computing moves both, waiting and sleeping only that on the wall."""

    wall_s: float = 100.0
    cpu_s: float = 7.0
    overshoot_s: float = 0.0
    """By how much a sleep lasts longer than asked for."""

    def burn(self, cpu_s: float) -> None:
        self.wall_s += cpu_s
        self.cpu_s += cpu_s

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.wall_s += seconds + self.overshoot_s

    def perf_counter(self) -> float:
        return self.wall_s

    def thread_time(self) -> float:
        return self.cpu_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pacing, "time", made)
    return made


def taken(clock: Clock, work: Callable[[], None]) -> float:
    """Seconds on the wall."""
    began = clock.wall_s
    work()
    return clock.wall_s - began


@pytest.mark.parametrize("speed", [0.1, 0.25, 0.5])
def test_work_takes_its_cpu_time_divided_by_the_speed(clock: Clock, speed: float) -> None:
    pacer = Pacer(speed)

    def work() -> None:
        with pacer.run():
            clock.burn(0.03)

    assert taken(clock, work) == pytest.approx(0.03 / speed)
    report = pacer.report
    assert report.cpu_s == pytest.approx(0.03)
    assert (report.declared_s, report.wall_s) == (pytest.approx(0.03 / speed), pytest.approx(0.03 / speed))
    assert report.lateness == pytest.approx(0.0)


@pytest.mark.parametrize("overshoot_s", [0.0, 6e-5, 5e-4])
def test_many_short_segments_take_as_long_as_one_long_segment(clock: Clock, overshoot_s: float) -> None:
    clock.overshoot_s = overshoot_s
    pacer = Pacer(0.2)

    def work() -> None:
        with pacer.run():
            for _ in range(100):
                clock.burn(0.0003)
                with pacer.communicating():
                    pass

    # A debt that is too short to sleep is left over at most, and one sleep that overshot.
    assert taken(clock, work) == pytest.approx(100 * 0.0003 / 0.2, abs=SHORTEST_SLEEP_S + overshoot_s)


def test_waiting_for_others_is_not_stretched(clock: Clock) -> None:
    pacer = Pacer(0.05)
    with pacer.run(), pacer.communicating():
        clock.wait(0.1)
    report = pacer.report
    assert (report.waited_s, report.wall_s) == (pytest.approx(0.1), pytest.approx(0.1))
    assert (report.declared_s, report.late_s) == (pytest.approx(0.0), pytest.approx(0.0))


def test_work_during_communication_is_not_paced(clock: Clock) -> None:
    pacer = Pacer(0.1)
    with pacer.run(), pacer.communicating():
        clock.burn(0.03)
    report = pacer.report
    assert (report.cpu_s, report.waited_s, report.wall_s) == (0.0, pytest.approx(0.03), pytest.approx(0.03))


def test_time_that_the_machine_did_not_give_counts_as_late(clock: Clock) -> None:
    pacer = Pacer(0.5)
    with pacer.run():
        clock.burn(0.01)
        clock.wait(0.1)  # others had the core
    report = pacer.report
    assert report.late_s == pytest.approx(0.11 - 0.02)
    assert report.lateness == pytest.approx(0.09 / 0.02)


def test_lateness_of_one_segment_is_not_made_up_by_the_next(clock: Clock) -> None:
    pacer = Pacer(0.5)
    with pacer.run():
        clock.wait(0.05)
        with pacer.communicating():
            pass
        before = clock.wall_s
        clock.burn(0.02)
        with pacer.communicating():
            assert clock.wall_s - before == pytest.approx(0.04)
    assert pacer.report.late_s == pytest.approx(0.05)


def test_each_run_has_its_own_report(clock: Clock) -> None:
    pacer = Pacer(0.5)
    for cpu_s in (0.02, 0.005):
        with pacer.run():
            clock.burn(cpu_s)
        assert pacer.report.cpu_s == pytest.approx(cpu_s)


def test_unpaced_thread_never_sleeps_and_is_never_late(clock: Clock) -> None:
    pacer = Pacer(None)
    with pacer.run():
        clock.burn(0.02)
    report = pacer.report
    assert (report.cpu_s, report.wall_s) == (pytest.approx(0.02), pytest.approx(0.02))
    assert (report.declared_s, report.late_s, report.lateness) == (0.0, 0.0, 0.0)


def test_segment_is_settled_when_the_work_fails(clock: Clock) -> None:
    pacer = Pacer(0.25)

    def work() -> None:
        with pacer.run():
            clock.burn(0.02)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        work()
    assert clock.wall_s == pytest.approx(100.0 + 0.08)


def test_real_thread_takes_no_less_than_its_cpu_time_divided_by_the_speed() -> None:
    pacer = Pacer(0.25)
    began = time.perf_counter()
    with pacer.run():
        began_cpu = time.thread_time()
        while time.thread_time() < began_cpu + 0.03:
            sum(range(500))
    wall = time.perf_counter() - began
    assert pacer.report.cpu_s >= 0.03
    assert wall >= pacer.report.cpu_s / 0.25 - SHORTEST_SLEEP_S
