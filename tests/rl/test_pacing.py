"""A paced thread takes its CPU time divided by its speed; waiting for others is never stretched; lateness is counted.

Upper bounds on wall time are wide: whatever else runs on the machine adds to it. Lower bounds are exact.
"""

from __future__ import annotations

import time

import pytest

from nereus.rl.pacing import SHORTEST_SLEEP_S, Pacer


def burn(cpu_s: float) -> None:
    """Compute until this thread has used so much CPU time."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        sum(range(500))


@pytest.mark.parametrize("speed", [0.1, 0.25, 0.5])
def test_busy_loop_takes_its_cpu_time_divided_by_the_speed(speed: float) -> None:
    pacer = Pacer(speed)
    began = time.perf_counter()
    with pacer.run():
        burn(0.03)
    wall = time.perf_counter() - began
    report = pacer.report
    assert report.cpu_s >= 0.03
    assert report.declared_s == pytest.approx(report.cpu_s / speed)
    assert wall >= report.declared_s - SHORTEST_SLEEP_S
    assert wall - report.late_s < report.declared_s + 0.1


def test_many_short_segments_take_no_less_and_hardly_more_than_one_long_segment() -> None:
    pacer = Pacer(0.2)
    began = time.perf_counter()
    with pacer.run():
        for _ in range(100):
            burn(0.0003)
            with pacer.communicating():
                pass
    wall, report = time.perf_counter() - began, pacer.report
    assert report.cpu_s >= 100 * 0.0003
    assert wall >= report.declared_s - SHORTEST_SLEEP_S
    assert wall - report.late_s - report.waited_s < 1.1 * report.declared_s + 0.05


def test_waiting_for_others_is_not_stretched() -> None:
    pacer = Pacer(0.05)
    with pacer.run(), pacer.communicating():
        time.sleep(0.1)
    report = pacer.report
    assert 0.1 <= report.waited_s < 0.2
    assert report.wall_s < 0.1 / 0.05 / 4
    assert report.declared_s < 0.1


def test_work_during_communication_is_not_paced() -> None:
    pacer = Pacer(0.1)
    with pacer.run(), pacer.communicating():
        burn(0.03)
    assert pacer.report.cpu_s < 0.01
    assert pacer.report.waited_s >= 0.03


def test_time_that_the_machine_did_not_give_counts_as_late() -> None:
    pacer = Pacer(0.5)
    with pacer.run():
        burn(0.01)
        time.sleep(0.1)  # stands for a core that others had
    report = pacer.report
    assert report.late_s == pytest.approx(0.1 + report.cpu_s - report.declared_s, abs=0.05)
    assert report.lateness == report.late_s / report.declared_s > 1


def test_lateness_of_one_segment_is_not_made_up_by_the_next() -> None:
    pacer = Pacer(0.5)
    with pacer.run():
        time.sleep(0.05)
        with pacer.communicating():
            pass
        before = time.perf_counter()
        burn(0.02)
        with pacer.communicating():
            assert time.perf_counter() - before >= 0.04 - SHORTEST_SLEEP_S
    assert pacer.report.late_s >= 0.045


def test_each_run_has_its_own_report() -> None:
    pacer = Pacer(0.5)
    with pacer.run():
        burn(0.02)
    with pacer.run():
        burn(0.005)
    assert 0.005 <= pacer.report.cpu_s < 0.02


def test_unpaced_thread_never_sleeps_and_is_never_late() -> None:
    pacer = Pacer(None)
    with pacer.run():
        burn(0.02)
    report = pacer.report
    assert report.cpu_s >= 0.02
    assert (report.declared_s, report.late_s, report.lateness) == (0.0, 0.0, 0.0)


def test_segment_is_settled_when_the_work_fails() -> None:
    def fail() -> None:
        burn(0.02)
        raise RuntimeError("on purpose")

    pacer = Pacer(0.25)
    began = time.perf_counter()
    with pytest.raises(RuntimeError, match="on purpose"), pacer.run():
        fail()
    assert time.perf_counter() - began >= 0.08 - SHORTEST_SLEEP_S
