"""`python -m benchmarks.transition_dag`: its keys, with solvers and without, on a few instances."""

from __future__ import annotations

import pytest

from benchmarks.ordering.model import Model
from benchmarks.ordering.report import summary
from benchmarks.ordering.running import Answer, answer
from benchmarks.ordering.solved import Solved
from tests.transition.generated import generated

KEYS = {
    *("instances", "unsafe", "feasible_only_solver", "makespan_ratio", "speedup_vs_solver", "seconds"),
    "greedy_only_refusals",
}


@pytest.fixture(scope="module")
def alone() -> list[Answer]:
    """Without a solver."""
    return [answer(generated(seed), {}, 1.0) for seed in range(6000, 6012)]


def test_without_solvers_their_keys_are_null_and_the_reason_is_there(alone: list[Answer]) -> None:
    found = summary(alone, {"scip": "pyscipopt is not installed: pip install pyscipopt"})
    assert found.keys() >= KEYS
    assert (found["feasible_only_solver"], found["makespan_ratio"]["median"]) == (None, None)
    assert found["speedup_vs_solver"]["median_40ops"] is None
    assert found["reasons"] == {"scip": "pyscipopt is not installed: pip install pyscipopt"}


def test_transitions_are_safe_and_refusals_proved(alone: list[Answer]) -> None:
    found = summary(alone, {})
    assert (found["instances"], found["unsafe"], found["refused"]["limit"]) == (12, 0, 0)
    assert sum(found["found"].values()) == 12


def test_order_that_only_a_solver_finds_is_counted() -> None:
    """A solver that finds an order of whatever we refuse, and one of half the length of whatever we do not."""

    def better(model: Model, limit_s: float) -> Solved:
        return Solved("optimal", 0.5)

    answers = [answer(generated(seed), {"cpsat": better}, 1.0) for seed in range(6000, 6040)]
    refused = [a for a in answers if a.found.is_refusal and not a.circle]
    found = summary(answers, {})
    assert found["feasible_only_solver"] == len(refused) > 0
    ratios = sorted(a.makespan / 0.5 for a in answers if a.makespan is not None)
    assert found["makespan_ratio"]["max"] == ratios[-1]
