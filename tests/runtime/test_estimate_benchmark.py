"""`python -m benchmarks.transition_estimate`: its keys, and who is judged; and that its job moves enough, often enough."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.transition_estimate import JOB, LEAST_BYTES, QUICK_STEPS, judged
from nereus.control.events import BoundaryReached
from nereus.rl.describe import describe
from nereus.spec.loading import load_job
from tests.control.harness import Core, report


def told(moved_bytes: float, predicted_s: float, seconds: float = 1.0) -> dict[str, Any]:
    return {
        "epoch": 1,
        "bytes_moved": moved_bytes,
        "l_tran_predicted_s": predicted_s,
        "seconds": seconds,
        "setup_s": 0.1,
        "trigger": "the job file says so",
    }


def test_only_transitions_that_move_enough_are_judged() -> None:
    """Errors of those: 0.5, 0.5, 1, then 0.1 and 0.3."""
    small = told(LEAST_BYTES - 1, 9.0)
    large = [told(LEAST_BYTES * number, 1 + error) for number, error in enumerate((0.5, -0.5, 1.0, 0.1, -0.3), 1)]
    found = judged([small, large[0], small, *large[1:]])
    assert found["transitions"] == 5
    assert found["moved_bytes"] == {"min": LEAST_BYTES, "median": 3 * LEAST_BYTES}
    assert found["error"] == {"all": pytest.approx(0.5), "median_after_three": pytest.approx(0.2)}
    assert [each["epoch"] for each in found["each"]] == [1] * 5


def test_run_in_which_nothing_moves_has_no_error() -> None:
    found = judged([told(0, 1.0)])
    assert found["transitions"] == 0
    assert found["error"] == {"all": None, "median_after_three": None}


def test_its_job_moves_50_mb_or_more_at_least_ten_times_and_the_quick_one_more_than_three() -> None:
    """Issue 6: over at least ten transitions that move 50 MB or more. By the plans alone: nothing runs."""
    job = load_job(JOB)
    core = Core(describe(job)).start(range(job.cluster.num_devices))
    moved = {}
    for number in range(1, job.steps):
        core.effects.clear()
        core.post(BoundaryReached(report=report(core.state, number, 3.0)))
        core.settle()
        for record in core.records:
            moved[number] = sum(op["bytes"] for op in record.outcome["ops"])
    assert len(moved) == len(job.transitions)
    assert sum(size >= LEAST_BYTES for size in moved.values()) >= 10
    assert sum(size >= LEAST_BYTES for number, size in moved.items() if number < QUICK_STEPS) > 3
