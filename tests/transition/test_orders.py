"""Orders of tasks under memory: the paper's rule, what it refuses though an order exists, and what is refused for good."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nereus.transition.arranging import quickest
from nereus.transition.exhausting import Exhausted, every_order
from nereus.transition.ordering import Blocked, paper_rule, peak_rule, place, resource_edges
from nereus.transition.searching import NODE_LIMIT, least_peak, ordered
from nereus.transition.tasks import Order, Problem, Task, binding
from nereus.transition.verdicts import Found
from tests.transition.order_checker import assert_fits_under_any_timing, assert_schedule_holds, make_task

GENERATION, INFERENCE, TRAINING = "actor_generation", "reward_inference", "actor_training"


def placed(problem: Problem) -> Order | Blocked:
    """By the paper's rule alone."""
    return place(problem, binding(problem), paper_rule)


def serial_orders(problem: Problem) -> Iterator[list[int]]:
    """Every order in which each task fits: brute force."""
    for order in permutations(range(len(problem.tasks))):
        held, done = dict(problem.held), set[int]()
        for index in order:
            task = problem.tasks[index]
            if not task.after <= done:
                break
            if any(held.get(e, 0) + size > problem.usable_bytes for e, size in task.takes.items()):
                break
            for endpoint in {*task.takes, *task.gives}:
                held[endpoint] = held.get(endpoint, 0) + task.takes.get(endpoint, 0) - task.gives.get(endpoint, 0)
            done.add(index)
        else:
            yield list(order)


# --- the paper's rule --------------------------------------------------------------------------------------------------


def test_release_goes_before_an_acquisition_that_is_ready() -> None:
    problem = Problem((make_task(GENERATION, takes={"a": 1}), make_task(TRAINING, gives={"b": 1})))
    assert placed(problem) == [1, 0]


def test_ties_go_generation_inference_training() -> None:
    stages = (TRAINING, GENERATION, INFERENCE)
    assert placed(Problem(tuple(make_task(stage, takes={stage: 1}) for stage in stages))) == [1, 2, 0]


def test_blocked_acquisition_waits_and_others_go_on() -> None:
    """Generation does not fit before training has given up what it has, and inference has nothing to do with it."""
    problem = Problem(
        (
            make_task(GENERATION, takes={"a": 4}),
            make_task(INFERENCE, takes={"b": 4}),
            make_task(TRAINING, gives={"a": 8}, after=[1]),
        ),
        {"a": 8},
        10,
    )
    assert placed(problem) == [1, 2, 0]


def test_blocked_acquisition_gets_an_edge_from_the_release_that_frees_its_device() -> None:
    tasks = (
        make_task(TRAINING, gives={"a": 4}),
        make_task(GENERATION, takes={"a": 4}),
        make_task(INFERENCE, gives={"b": 4}),
    )
    problem = Problem(tasks, {"a": 8, "b": 4}, 10)
    assert resource_edges(problem, binding(problem), [0, 2, 1], [1, 2, 1]) == {1: frozenset({0})}


def test_edges_come_from_no_more_releases_than_it_takes() -> None:
    """Either of two Destroys makes room: the one that ends first is waited for."""
    slow, fast = make_task(TRAINING, gives={"a": 4}), make_task(INFERENCE, gives={"a": 4})
    problem = Problem((replace(slow, seconds=9.0), fast, make_task(GENERATION, takes={"a": 4})), {"a": 8}, 10)
    assert resource_edges(problem, binding(problem), [0, 1, 2], [9, 1, 10]) == {2: frozenset({1})}


def test_task_that_always_fits_gets_no_edge() -> None:
    problem = Problem((make_task(TRAINING, gives={"a": 4}), make_task(GENERATION, takes={"a": 2})), {"a": 8}, 10)
    assert resource_edges(problem, binding(problem), [0, 1], [1, 2]) == {}


# --- the second stage --------------------------------------------------------------------------------------------------

RESHAPE = make_task(TRAINING, takes={"d0": 5}, gives={"d0": 4})
CASE_MEMORY = Problem((make_task(GENERATION, takes={"d0": 4}), RESHAPE), {"d0": 4}, 10)
"""Capacity 10, training holds 4 and takes 5 for a moment before it gives 4 back; generation wants 4."""


def test_minimal_case_of_memory_is_refused_by_the_rule() -> None:
    """Generation first: 8 + 5 > 10."""
    assert placed(CASE_MEMORY) == Blocked(1, "d0", 13)


def test_minimal_case_of_memory_is_found_by_the_peak_rule() -> None:
    """The reshape goes to 9 and back to 5, then 5 + 4 <= 10."""
    outcome = ordered(CASE_MEMORY)
    assert (outcome.found, outcome.order) == (Found.SEARCHED, [1, 0])
    assert place(CASE_MEMORY, binding(CASE_MEMORY), peak_rule) == [1, 0]


def test_minimal_case_of_memory_is_refused_below_what_it_needs() -> None:
    """9 is the least; with 8 usable, no order helps, and the device and its bytes are named."""
    outcome = ordered(replace(CASE_MEMORY, usable_bytes=8))
    assert (outcome.found, outcome.blocked) == (Found.REFUSED_PROVED, Blocked(1, "d0", 9))


def test_device_that_is_too_full_from_the_start_is_refused() -> None:
    outcome = ordered(Problem((make_task(TRAINING, gives={"a": 1}),), {"a": 11}, 10))
    assert (outcome.found, outcome.blocked) == (Found.REFUSED_PROVED, Blocked(0, "a", 11))


def test_two_devices_that_fit_alone_and_not_together_are_refused_by_the_search() -> None:
    """On each device one task has to go before the other, and on the two devices in opposite orders."""
    first = make_task(GENERATION, takes={"a": 5, "b": 5}, gives={"a": 4, "b": 2})
    second = make_task(TRAINING, takes={"a": 5, "b": 5}, gives={"a": 2, "b": 4})
    both = Problem((first, second), {"a": 3, "b": 3}, 10)
    only_a = replace(both, tasks=tuple(replace(t, takes={"a": t.takes["a"]}, gives={"a": t.gives["a"]}) for t in both.tasks))
    only_b = replace(both, tasks=tuple(replace(t, takes={"b": t.takes["b"]}, gives={"b": t.gives["b"]}) for t in both.tasks))
    assert [list(serial_orders(problem)) for problem in (only_a, only_b, both)] == [[[0, 1]], [[1, 0]], []]
    assert ordered(both).found is Found.REFUSED_PROVED
    assert ordered(replace(both, usable_bytes=11)).found is Found.GREEDY


def test_search_that_comes_to_its_limit_says_that_it_is_no_proof() -> None:
    tasks = tuple(make_task(f"s{i}_training", takes={"a": 5, "b": 5}, gives={"a": 4, "b": 4}) for i in range(6))
    wall = make_task("x_training", takes={"a": 1, "b": 30})
    problem = Problem((*tasks, wall), {"a": 3, "b": 3}, 12)
    found = every_order(problem, binding(problem), node_limit=3)
    assert found == Exhausted(proved=False)
    assert every_order(problem, binding(problem), NODE_LIMIT) == Exhausted(proved=True)


# --- against brute force -----------------------------------------------------------------------------------------------

USES = st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3)
STAGE_NAMES = st.sampled_from([GENERATION, INFERENCE, TRAINING, "critic_training"])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to six tasks on three devices; no device ever gives back more than it has."""
    tasks: list[Task] = []
    given_back = dict.fromkeys("abc", 0)
    for index in range(draw(st.integers(1, 6))):
        uses = draw(USES)
        takes = {e: take for e, (take, _) in uses.items() if take}
        gives = {e: give for e, (_, give) in uses.items() if give}
        for endpoint, (take, give) in uses.items():
            given_back[endpoint] += max(0, give - take)
        after = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        tasks.append(Task(draw(STAGE_NAMES), not takes, tuple(uses), frozenset(after), takes, gives, 1.0))
    held = {endpoint: size + draw(st.integers(0, 3)) for endpoint, size in given_back.items()}
    return Problem(tuple(tasks), held, max(held.values()) + draw(st.integers(0, 9)))


@settings(max_examples=400)
@given(problem=problems())
def test_order_is_found_where_there_is_one_and_refused_with_proof_where_there_is_none(problem: Problem) -> None:
    outcome = ordered(problem)
    if any(True for _ in serial_orders(problem)):
        assert not outcome.found.is_refusal
        assert outcome.order in list(serial_orders(problem))
    else:
        assert outcome.found is Found.REFUSED_PROVED


@settings(max_examples=400)
@given(problem=problems())
def test_order_with_its_edges_fits_under_any_timing(problem: Problem) -> None:
    outcome = ordered(problem)
    if outcome.blocked is None:
        after, schedule = quickest(problem, outcome.order)
        assert_fits_under_any_timing(problem, after)
        assert_schedule_holds(problem, after, schedule)


@settings(max_examples=200)
@given(problem=problems(), more=st.integers(1, 5))
def test_more_memory_never_turns_found_into_refused(problem: Problem, more: int) -> None:
    before, after = ordered(problem), ordered(replace(problem, usable_bytes=problem.usable_bytes + more))
    assert before.found.is_refusal or not after.found.is_refusal


@settings(max_examples=200)
@given(problem=problems())
def test_search_alone_agrees_with_brute_force(problem: Problem) -> None:
    """Without the rules before it."""
    found = every_order(problem, binding(problem), NODE_LIMIT)
    orders = list(serial_orders(problem))
    assert found in orders if orders else found == Exhausted(proved=True)


@settings(max_examples=200)
@given(problem=problems())
def test_least_peak_of_a_device_is_that_of_the_best_order(problem: Problem) -> None:
    alone = Problem(
        tuple(
            replace(task, takes={"a": task.takes.get("a", 0)}, gives={"a": task.gives.get("a", 0)}) for task in problem.tasks
        ),
        {"a": problem.held["a"]},
        -1,
    )
    (device,) = binding(alone)
    best = min(_peak(alone, order) for order in serial_orders(replace(alone, usable_bytes=10**6)))
    found = least_peak(alone, device)
    assert found is not None
    assert found.needed_bytes == best


def _peak(problem: Problem, order: list[int]) -> int:
    level = peak = problem.held["a"]
    for index in order:
        peak = max(peak, level + problem.tasks[index].takes["a"])
        level += problem.tasks[index].takes["a"] - problem.tasks[index].gives["a"]
    return peak


@pytest.mark.parametrize("count", [200, 400])
def test_many_stages_are_ordered_without_a_search(count: int) -> None:
    """Each takes what the one before gives back: only the rule's own order of blocked tasks is needed."""
    tasks = [make_task(TRAINING, gives={"d0": 4})]
    for index in range(1, count):
        tasks.append(make_task(INFERENCE, takes={f"d{index - 1}": 4}, gives={}))
        tasks.append(make_task(INFERENCE, gives={f"d{index}": 4}, after=[len(tasks) - 1]))
    problem = Problem(tuple(tasks), {f"d{index}": 8 for index in range(count)}, 10)
    assert ordered(problem).found is Found.GREEDY
