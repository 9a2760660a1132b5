"""A schedule that meets a bound is the shortest: by hand, and against every order of small transitions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.transition.bounds import Bounds
from nereus.transition.gating import gated
from nereus.transition.lanes import Columns, Schedule, Waits
from nereus.transition.tasks import Task
from tests.transition.test_dispatch import TASKS, best_of_all_orders, task, tasks_of


def in_turn(*tasks: Task) -> tuple[Bounds, Schedule]:
    """The bounds of tasks, and their schedule when the first ones are the most urgent."""
    columns, waits = Columns.of(tasks), Waits.of([t.after for t in tasks], list(range(len(tasks))))
    schedule = gated(columns, waits, [-float(index) for index in range(len(tasks))])
    assert schedule is not None
    return Bounds(columns, waits), schedule


def test_no_schedule_is_shorter_than_the_longest_chain() -> None:
    bounds, schedule = in_turn(task("a", 2), task("b", 3, (0,)), task("c", 4))
    assert schedule.seconds == 5
    assert bounds.prove(schedule)


def test_no_schedule_is_shorter_than_a_lane_with_what_comes_before_and_after_it() -> None:
    """2 before, 3 + 4 on b, 1 after; the chain alone takes 7."""
    bounds, schedule = in_turn(
        task("a", 2), task("c", 2), task("b", 4, (0,)), task("b", 3, (1,)), task("d", 1, (2,)), task("e", 1, (3,))
    )
    assert schedule.seconds == 10
    assert bounds.prove(schedule)


def test_tasks_that_meet_two_by_two_on_different_lanes_follow_each_other() -> None:
    """No lane is busy for more than 2 of the 3 seconds."""
    bounds, schedule = in_turn(task("ab", 1), task("bc", 1), task("ca", 1))
    assert schedule.seconds == 3
    assert bounds.prove(schedule)


def test_task_that_waits_for_one_of_those_that_never_meet_is_part_of_their_sequence() -> None:
    """First ab, then bc, whose follower d shares an uplink with both and a lane with none: 1 + 1 + 1."""
    bounds, schedule = in_turn(task("ab", 1, uplink=0.6), task("bc", 1, uplink=0.6), task("d", 1, (1,), uplink=0.6))
    assert schedule.seconds == 3
    assert bounds.prove(schedule)


def test_uplink_carries_a_fifth_of_four_only_after_one_has_ended() -> None:
    """By its bytes it would be done after 5 x 0.25 of a task's time."""
    bounds, schedule = in_turn(*(task(name, 2, uplink=0.25) for name in "abcde"))
    assert schedule.seconds == 4
    assert bounds.prove(schedule)


def test_uplink_is_full_between_what_comes_before_and_after_it() -> None:
    """1 before, 2 x 0.5 x 3 on the uplink, a third of them alone, 1 after."""
    before = (task("f", 1), task("g", 1), task("h", 1))
    crossing = (task("a", 2, (0,), 0.5), task("b", 2, (1,), 0.5), task("c", 2, (2,), 0.5))
    bounds, schedule = in_turn(*before, *crossing, *(task("xyz"[at], 1, (3 + at,)) for at in range(3)))
    assert schedule.seconds == 1 + 4 + 1
    assert bounds.prove(schedule)


def test_schedule_with_a_gap_that_another_one_closes_meets_no_bound() -> None:
    """The 5 before the chain of 6 and 4: 15, where 12 would do."""
    bounds, schedule = in_turn(task("a", 1), task("b", 5), task("b", 6, (0,)), task("c", 4, (2,)))
    assert schedule.seconds == 15
    assert not bounds.prove(schedule)


@settings(max_examples=300)
@given(drawn=TASKS, priority=st.lists(st.integers(0, 9), min_size=5, max_size=5))
def test_no_schedule_is_shorter_than_one_that_meets_a_bound(
    drawn: list[tuple[set[str], int, set[int], float]], priority: list[int]
) -> None:
    tasks = tasks_of(drawn)
    columns, waits = Columns.of(tasks), Waits.of([t.after for t in tasks], list(range(len(tasks))))
    schedule = gated(columns, waits, [float(urgent) for urgent in priority[: len(tasks)]])
    assert schedule is not None
    if Bounds(columns, waits).prove(schedule):
        assert schedule.seconds <= best_of_all_orders(tasks) + 1e-9
