"""Schedules: valid, no longer than they must be, and in one order on all lanes."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.transition.dispatch import shortest
from nereus.transition.lanes import Columns, Waits, in_order
from nereus.transition.tasks import Problem, Task
from tests.transition.order_checker import assert_lanes_never_deadlock, assert_schedule_holds

NOTHING_BEFORE: frozenset[int] = frozenset()


def task(members: str, seconds: float, after: tuple[int, ...] = (), uplink: float = 0.0) -> Task:
    return Task(
        "a_training", False, tuple(members), frozenset(after), {}, {}, seconds, {"out of 0": uplink} if uplink else {}
    )


def scheduled(*tasks: Task) -> float:
    return shortest(Columns.of(tasks), Waits.of([t.after for t in tasks], list(range(len(tasks))))).seconds


# --- by hand -----------------------------------------------------------------------------------------------------------


def test_urgent_task_goes_first_although_another_is_ready_earlier() -> None:
    """Lane b idles until 1: then 6, and 4 more after it on c, while b takes its other 5: 12. Started at once, the 5 would
    delay the chain: 5 + 6 + 4."""
    assert scheduled(task("a", 1), task("b", 6, (0,)), task("b", 5), task("c", 4, (1,))) == pytest.approx(12)


def test_lane_does_not_idle_where_nothing_urgent_comes() -> None:
    """5 + 6, and not 1 + 6 + 5."""
    assert scheduled(task("a", 1), task("b", 6, (0,)), task("b", 5)) == pytest.approx(11)


def test_tasks_whose_uplink_shares_fit_run_together() -> None:
    assert scheduled(task("a", 4, uplink=0.5), task("b", 4, uplink=0.5)) == pytest.approx(4)
    assert scheduled(task("a", 4, uplink=0.5), task("b", 4, uplink=0.6)) == pytest.approx(8)


def test_uplink_that_is_shared_three_ways_is_never_overfull() -> None:
    """Two of three fit at once: 2 x 4."""
    assert scheduled(*(task(name, 4, uplink=0.4) for name in "abc")) == pytest.approx(8)


def test_tasks_in_their_own_order_keep_it_on_each_lane() -> None:
    """The second waits for its predecessor while the third, ready at once, keeps behind it."""
    tasks = (task("a", 3), task("b", 1, (0,)), task("b", 1))
    assert in_order(tasks, [t.after for t in tasks]).starts == (0, 3, 4)


def test_no_task_takes_no_time() -> None:
    assert in_order([], []).seconds == 0


# --- against brute force, and the independent replay -------------------------------------------------------------------

TASKS = st.lists(
    st.tuples(
        st.sets(st.sampled_from("abcd"), min_size=1, max_size=2),
        st.integers(1, 6),
        st.sets(st.integers(0, 5), max_size=2),
        st.sampled_from([0.0, 0.4, 0.7]),
    ),
    min_size=1,
    max_size=5,
)


def tasks_of(drawn: list[tuple[set[str], int, set[int], float]]) -> list[Task]:
    return [
        task("".join(sorted(members)), seconds, tuple(b for b in after if b < index), uplink)
        for index, (members, seconds, after, uplink) in enumerate(drawn)
    ]


def best_of_all_orders(tasks: list[Task]) -> float:
    """Every order that the waits admit, each carried out as it stands: one of them is an optimum."""
    best = float("inf")
    for order in permutations(range(len(tasks))):
        place = {index: at for at, index in enumerate(order)}
        if all(place[b] < place[i] for i, t in enumerate(tasks) for b in t.after):
            again = [replace(tasks[i], after=frozenset(place[b] for b in tasks[i].after)) for i in order]
            best = min(best, in_order(again, [t.after for t in again]).seconds)
    return best


@settings(max_examples=150)
@given(drawn=TASKS)
def test_small_schedules_are_the_shortest_that_there_are(drawn: list[tuple[set[str], int, set[int], float]]) -> None:
    tasks = tasks_of(drawn)
    assert scheduled(*tasks) == pytest.approx(best_of_all_orders(tasks))


@settings(max_examples=150)
@given(drawn=TASKS)
def test_schedule_holds_when_it_is_replayed(drawn: list[tuple[set[str], int, set[int], float]]) -> None:
    tasks = tasks_of(drawn)
    after = [t.after for t in tasks]
    schedule = shortest(Columns.of(tasks), Waits.of(after, list(range(len(tasks)))))
    assert_schedule_holds(Problem(tuple(tasks)), after, schedule)
    assert_lanes_never_deadlock([t.members for t in tasks], after, schedule.order)


@settings(max_examples=150)
@given(drawn=TASKS)
def test_order_of_a_schedule_takes_no_longer_than_it_when_lanes_keep_it(
    drawn: list[tuple[set[str], int, set[int], float]],
) -> None:
    """What the runtime does with it: an estimate of the order is the schedule's."""
    tasks = tasks_of(drawn)
    schedule = shortest(Columns.of(tasks), Waits.of([t.after for t in tasks], list(range(len(tasks)))))
    place = {index: at for at, index in enumerate(schedule.order)}
    again = [replace(tasks[i], after=frozenset(place[b] for b in tasks[i].after)) for i in schedule.order]
    assert all(max(t.after, default=-1) < at for at, t in enumerate(again))
    assert in_order(again, [t.after for t in again]).seconds <= schedule.seconds + 1e-9
