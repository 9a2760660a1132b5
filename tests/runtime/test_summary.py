"""The summary of a run, from a list of events and sums done by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nereus.cli.display import transition_table
from nereus.control.effects import Decision, DevicesChanged, News, Started, TransitionRecord
from nereus.control.report import StepReport
from nereus.emu.plan import Plan
from nereus.policy.admission import Code, admit
from nereus.policy.proposal import Proposal
from nereus.runtime.summary import SampleCounts, l_tran_error, plan_dict, summarize
from tests.api.news import restored, saved
from tests.builders import make_plan

COUNTS = SampleCounts(seen=24, repeated=0, skipped=0)
FIRST = Plan(0, {"actor_training": make_plan("tp2 pp2 dp1"), "actor_generation": make_plan("tp1 dp2", devices=(4, 7))})
SECOND = Plan(1, {"actor_training": make_plan("tp1 pp1 dp8"), "actor_generation": make_plan("tp2", devices=(5, 6))})


OUTCOME = {
    "bytes_moved": 4096,
    "seconds": 1.5,
    "setup_s": 0.25,
    "quiesce_s": 0.0625,
    "digest_s": 0.125,
    "groups_made": 5,
    "groups_reused": 2,
    "peak_bytes": 9000,
    "l_tran_predicted_s": 1.25,
    "ops": [],
    "digest_equal": True,
}

CHANGE = TransitionRecord(
    step=2,
    epoch=1,
    trigger="the pool grew",
    primitives={"Split": 1, "Merge": 2},
    joined=(6, 7),
    left=(0,),
    plan=SECOND,
    outcome=OUTCOME,
)


def decision(target_s: float, l_tran_s: float) -> Decision:
    """A decision on a plan of so many seconds per step, from one of 2 s, with a horizon of 4 steps."""
    return Decision(
        step=1,
        cycle=3,
        triggers=("the pool grew",),
        target={"actor_training": "tp1 pp1 dp8 on 0-7"},
        verdict=admit(2.0, target_s, l_tran_s, 4.0, urgent=False),
        proposal=Proposal(
            stages={},
            l_step_s=target_s,
            peak_bytes=1,
            l_tran_s=l_tran_s,
            transition_peak_bytes=1,
            primitives={},
            bytes_moved=0,
            infeasible=None,
        ),
    )


def step(number: int, reward: float, late_s: float, declared_s: float, **peaks: int) -> StepReport:
    return StepReport(
        step=number,
        reward=reward,
        response_tokens_mean=3.0,
        response_tokens_max=5,
        num_samples=8,
        loss=0.1,
        kl=0.01,
        grad_norm=1.0,
        updates=number,
        stage_s={"actor_training": 0.5},
        step_s=1.0,
        late_s=late_s,
        declared_s=declared_s,
        peak_bytes=peaks,
    )


EVENTS: list[News] = [
    Started(plan=FIRST),
    DevicesChanged(step=0, ready={0: "d0.0"}, leaving={}),
    step(1, 0.25, 0.5, 10.0, d0=100, d1=700),
    decision(1.0, 2.5),
    decision(1.0, 1.5),
    step(2, 0.75, 0.0, 20.0, d0=900, d1=300),
    CHANGE,
    step(3, 0.5, 1.0, 20.0, d0=200, d1=800),
]


def predicted(plan: Plan, at: int) -> int:
    """1000 a step on the first plan, 100 a step on the second."""
    return at * {0: 1000, 1: 100}[plan.epoch]


def test_summary_counts_steps_and_keeps_the_first_and_the_last_reward() -> None:
    summary = summarize(EVENTS, COUNTS, predicted)
    assert (summary.steps, summary.reward_first, summary.reward_last) == (3, 0.25, 0.5)


def test_summary_has_the_peak_of_the_worst_device_and_of_the_worst_predicted_step() -> None:
    assert summarize(EVENTS, COUNTS, predicted).peak_bytes == {"predicted": 2000, "measured": 900}


def test_step_is_predicted_on_the_plan_that_it_ran_on() -> None:
    asked: list[tuple[int, int]] = []

    def note(plan: Plan, at: int) -> int:
        asked.append((at, plan.epoch))
        return 0

    summarize(EVENTS, COUNTS, note)
    assert asked == [(1, 0), (2, 0), (3, 1)]


def test_lateness_is_the_late_share_of_all_declared_time() -> None:
    assert summarize(EVENTS, COUNTS, predicted).lateness == pytest.approx(1.5 / 50.0)


def test_unpaced_run_is_not_late() -> None:
    events = [replace(e, late_s=0.0, declared_s=0.0) if isinstance(e, StepReport) else e for e in EVENTS]
    assert summarize(events, COUNTS, predicted).lateness == 0.0


def test_summary_passes_on_the_books_on_samples() -> None:
    summary = summarize(EVENTS, SampleCounts(seen=24, repeated=3, skipped=2), predicted)
    assert (summary.samples_seen, summary.samples_repeated, summary.samples_skipped) == (24, 3, 2)


def test_transition_is_told_with_its_primitives_and_all_that_was_measured() -> None:
    assert summarize(EVENTS, COUNTS, predicted).transitions == [
        {
            "step": 2,
            "epoch": 1,
            "trigger": "the pool grew",
            "primitives": {"Split": 1, "Merge": 2},
            "joined": [6, 7],
            "left": [0],
            "bytes_moved": 4096,
            "seconds": 1.5,
            "setup_s": 0.25,
            "quiesce_s": 0.0625,
            "digest_s": 0.125,
            "groups_made": 5,
            "groups_reused": 2,
            "peak_bytes": 9000,
            "l_tran_predicted_s": 1.25,
            "ops": [],
            "digest_equal": True,
        }
    ]


def outcomes(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    """Transitions of so many predicted and measured seconds."""
    return [{"l_tran_predicted_s": predicted_s, "seconds": seconds} for predicted_s, seconds in pairs]


def test_error_of_the_predicted_seconds_is_the_median_over_all_and_from_the_fourth_on() -> None:
    """Errors of 1, 0.5, 1, then 0.25, 0 and 0.1."""
    told = outcomes((2, 1), (0.5, 1), (4, 2), (1.25, 1), (2, 2), (0.9, 1))
    assert l_tran_error(told) == {"all": pytest.approx(0.375), "after_three": pytest.approx(0.1)}
    assert l_tran_error(told[:3]) == {"all": pytest.approx(1.0), "after_three": None}
    assert l_tran_error([]) == {"all": None, "after_three": None}


def test_table_of_a_run_has_what_was_predicted_beside_what_it_took() -> None:
    lines = transition_table(summarize(EVENTS, COUNTS, predicted))
    assert lines[1].split() == ["epoch", "after", "step", "moved", "MiB", "predicted", "s", "took", "s", "error"]
    assert lines[2].split() == ["1", "2", "0.0", "1.250", "1.500", "-17%"]
    assert lines[-1] == "median error of the predicted seconds: 17%"
    assert transition_table(summarize(EVENTS[:3], COUNTS, predicted)) == []


def test_rejected_candidates_are_told_with_their_payback_figures_and_admitted_ones_are_not() -> None:
    (rejected,) = summarize(EVENTS, COUNTS, predicted).rejected
    assert (rejected["code"], rejected["step"]) == (Code.REJECTED_PAYBACK, 1)
    assert (rejected["delta_l_s"], rejected["l_tran_s"], rejected["horizon_steps"]) == (1.0, 2.5, 4.0)
    assert "paid back in 2.50 of 2.00 steps" in rejected["reason"]
    assert rejected["target"] == {"actor_training": "tp1 pp1 dp8 on 0-7"}


def test_final_plan_is_that_of_the_last_transition_or_of_the_start() -> None:
    training = {"tp": 1, "pp": 1, "dp": 8, "devices": [0, 1, 2, 3, 4, 5, 6, 7], "micro_batch": 1, "recompute": False}
    assert summarize(EVENTS, COUNTS, predicted).final_plan["actor_training"] == training
    assert summarize(EVENTS[:3], COUNTS, predicted).final_plan == plan_dict(FIRST)
    assert plan_dict(FIRST)["actor_generation"] == {
        "tp": 1,
        "pp": 1,
        "dp": 2,
        "devices": [4, 7],
        "micro_batch": 1,
        "recompute": False,
    }


def test_summary_of_a_run_has_the_promised_keys_and_is_json() -> None:
    written = json.loads(json.dumps(summarize(EVENTS, COUNTS, predicted).as_dict()))
    assert {
        "steps",
        "reward_first",
        "reward_last",
        "transitions",
        "l_tran_error",
        "rejected",
        "samples_seen",
        "samples_repeated",
        "samples_skipped",
        "peak_bytes",
        "lateness",
        "final_plan",
    } <= set(written)
    assert set(written["peak_bytes"]) == {"predicted", "measured"}


def test_run_without_a_step_has_no_summary() -> None:
    with pytest.raises(ValueError, match="without a step"):
        summarize([Started(plan=FIRST)], COUNTS, predicted)


def test_steps_behind_a_checkpoint_that_the_job_went_back_to_count_once() -> None:
    first = [step(number, 0.5, 0.0, 1.0, d0=1) for number in (1, 2)]
    lost, again = ([step(number, reward, 0.0, 1.0, d0=1) for number in (3, 4)] for reward in (0.125, 0.875))
    news = [Started(plan=FIRST), *first, saved(2), *lost, restored(2, repeated_steps=2), *again]
    summary = summarize(news, COUNTS, lambda plan, number: number)
    assert (summary.steps, summary.reward_last) == (4, 0.875)
    assert [entry["repeated_steps"] for entry in summary.restored] == [2]
    assert [(entry["step"], entry["folder"]) for entry in summary.saved] == [(2, "/checkpoints/000001-step-2")]
    assert summary.final_plan["actor_training"]["dp"] == 2
    json.dumps(summary.as_dict())
