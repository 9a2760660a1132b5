"""Ties of asynchronous jobs: of equally fast plans the one whose shorter side has slack, by brute force over all plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from nereus.planner.problem import Pool, Problem, Stage
from nereus.planner.slack import SLACK, settled
from nereus.planner.solve import solve
from tests.planner.checking import assert_holds
from tests.planner.instances import random_problem
from tests.planner.test_exact_search import make_holder


def step_s(problem: Problem, rows: tuple[int, ...]) -> float:
    """L_step of the best placement of these rows; infinite where they have none."""
    found, _ = solve(problem.narrowed([[row] for row in rows]))
    return found[0].step_seconds if found else float("inf")


def without(problem: Problem, generation: bool) -> Problem:
    """The problem with one of its two sides taking no time."""
    return replace(
        problem,
        holders=tuple(
            replace(holder, rows=replace(holder.rows, seconds=holder.rows.seconds * 0.0))
            if (Stage.GENERATION in holder.stages) is generation
            else holder
            for holder in problem.holders
        ),
    )


def chosen(problem: Problem) -> tuple[int, ...]:
    found, _ = solve(problem, 3)
    return settled(problem, found, lambda one: step_s(problem, one.rows))[0].rows


def two_sides(*training: tuple[float, int, float, float]) -> Problem:
    generation = make_holder("gen", Stage.GENERATION, (10.0, 4, 1, 1))
    return Problem((generation, make_holder("actor", Stage.TRAINING, *training)), Pool.of([8], 10.0), asynchronous=True)


def test_training_beside_a_longer_generation_gets_devices_until_it_has_slack() -> None:
    """Four devices are left: at two it would end with generation, at three well before, and a fourth gains nothing."""
    assert 10.0 / (1 + SLACK) == 8.0
    assert chosen(two_sides((10.0, 2, 1, 1), (8.0, 3, 1, 1), (6.0, 4, 1, 1))) == (0, 1)


def test_training_gets_what_slack_there_is() -> None:
    assert chosen(two_sides((10.0, 2, 1, 1), (9.5, 3, 1, 1), (9.0, 4, 1, 1))) == (0, 2)


def test_generation_beside_a_longer_training_gets_slack() -> None:
    generation = make_holder("gen", Stage.GENERATION, (11.0, 2, 1, 1), (9.0, 4, 1, 1))
    training = make_holder("actor", Stage.TRAINING, (12.0, 4, 1, 1))
    assert chosen(Problem((generation, training), Pool.of([8], 10.0), asynchronous=True)) == (1, 0)


def test_slack_is_never_paid_for_with_time() -> None:
    """The row that would give slack makes generation slower: it needs the device."""
    generation = make_holder("gen", Stage.GENERATION, (10.0, 6, 1, 1), (10.1, 4, 1, 1))
    training = make_holder("actor", Stage.TRAINING, (10.0, 2, 1, 1), (5.0, 4, 1, 1))
    assert chosen(Problem((generation, training), Pool.of([8], 10.0), asynchronous=True)) == (0, 0)


@pytest.mark.parametrize("seed", [seed for seed in range(60) if len(random_problem(seed).holders) == 3])
def test_no_plan_as_fast_has_more_slack(seed: int) -> None:
    problem = replace(random_problem(seed), asynchronous=True, overlaps=True)
    found, _ = solve(problem, 3)
    if not found:
        return
    after = settled(problem, found, lambda one: step_s(problem, one.rows))
    assert len(after) == len(found)
    assert len({one.shape for one in after}) == len(after)
    for one in after:
        assert_holds(problem, one)
    first, best_s = after[0], found[0].step_seconds
    assert first.step_seconds == best_s
    equal = [r for r in product(*(range(len(holder.rows)) for holder in problem.holders)) if step_s(problem, r) == best_s]
    rest_s = {rows: step_s(without(problem, generation=True), rows) for rows in equal}
    if step_s(without(problem, generation=False), found[0].rows) == best_s:
        wanted_s = max(min(rest_s.values()), best_s / (1 + SLACK))
        assert rest_s[first.rows] <= wanted_s * (1 + 1e-6)
