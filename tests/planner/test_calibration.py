"""Learning from a run's log: a known machine is found again from its stage times, and prices layouts that never ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from nereus.cost.accelerator import AcceleratorModel, Key, Learnt
from nereus.cost.efficiency import Efficiencies
from nereus.cost.operations import OpClass
from nereus.cost.priors import shipped
from nereus.errors import UserError
from nereus.planner.accelerators import Pricer
from nereus.planner.calibration import WARM_UP, WINDOW, Calibration, calibrate, execution, one_step_ahead, samples_of
from nereus.spec.hf_config import HfModel
from nereus.spec.outline import parse_outline
from nereus.spec.plan_file import PlannedStage
from nereus.spec.ran import RanStage
from nereus.spec.run_log import LoggedStep, RunLog
from nereus.spec.stages import ROLES
from tests.cost.accelerators import LLAMA_8B

OUTLINE = parse_outline(
    {
        "name": "o",
        "algorithm": "grpo",
        "models": {"actor": "a.json", "reward": "rule"},
        "workload": {"prompts_per_step": 64, "samples_per_prompt": 4, "prompt_tokens": 256, "response_tokens": 2048},
        "nodes": [{"kind": "H100"}],
    }
)
MODELS = dict.fromkeys(("actor", "reference"), HfModel(LLAMA_8B.decoder, ""))
"""Large enough that products, not launches, decide what inference and training take."""
STAGES = ("actor_generation", "actor_inference", "reference_inference", "actor_training")
SLOW = {
    "generation": {OpClass.DECODE_DISPATCH: 0.2, OpClass.WEIGHTS: 0.4},
    "inference": {OpClass.GEMM: 0.3},
    "training": {OpClass.GEMM: 0.25},
}
"""A machine that is slower than what ships says, and by another factor in each role."""


def machine(changes: Mapping[str, Mapping[OpClass, float]]) -> Learnt:
    """The truth: what ships with H100, but for these classes."""
    known = shipped("H100")

    def of(role: str) -> Efficiencies:
        values = {op: known.values[op]._replace(value=value) for op, value in changes[role].items()}
        return replace(known, values={**known.values, **values})

    return {("H100", role): AcceleratorModel(of(role)) for role in ROLES}


def ran(**choices: Any) -> dict[str, RanStage]:
    """The plan that ran: eight replicas of each model-stage, or what is said."""
    plan = dict.fromkeys(OUTLINE.workflow.holders, PlannedStage(dp=8)) | choices
    return {holder: RanStage(nodes=OUTLINE.nodes[0], choice=choice) for holder, choice in plan.items()}


def run_log(truth: Learnt, count: int, *, seed: int = 0, every: int = 0) -> RunLog:
    """Steps of growing and scattered lengths, with times of the true machine and 3 % of noise.

    Every `every`-th step takes three times as long, as those that validate or save do.
    """
    random = Random(seed)
    lengths = [(1000 + 20 * at) * random.uniform(0.9, 1.1) for at in range(count)]
    steps = [LoggedStep(at, 200.0, mean, 1.5 * mean, dict.fromkeys(STAGES, 1.0)) for at, mean in enumerate(lengths)]
    timed = []
    for at, (step, samples) in enumerate(zip(steps, samples_of(OUTLINE, MODELS, ran(), steps), strict=True)):
        spike = 3.0 if every and at % every == 0 else 1.0
        taken = {s.stage: truth[s.key].seconds(s.work) * spike * (1 + random.gauss(0, 0.03)) for s in samples}
        timed.append(replace(step, seconds=taken))
    return RunLog(tuple(timed), 0)


def seconds(learnt: Learnt, stage: str, choice: PlannedStage) -> float:
    """What a model-stage takes in a layout, at the outline's lengths."""
    pricer = Pricer(OUTLINE, MODELS, learnt)
    return pricer.prediction(stage, 0, execution(pricer, stage, 0, choice)).seconds


@pytest.fixture(scope="module", params=[0, 20], ids=["calm", "spikes"])
def found(request: pytest.FixtureRequest) -> Calibration:
    """What a log of the slow machine teaches, without and with spikes."""
    return calibrate(OUTLINE, MODELS, ran(), run_log(machine(SLOW), 60, every=request.param), {})


@pytest.mark.parametrize("stage", ["actor_generation", "reference_inference", "actor_training"])
def test_layout_that_never_ran_is_priced_by_what_the_log_taught(found: Calibration, stage: str) -> None:
    """Four ranks of a pipeline have no messages that the run did not have but small sends."""
    truth, other = machine(SLOW), PlannedStage(pp=2, dp=4, micro_batch=16 if stage == "actor_generation" else 1)
    right = seconds(truth, stage, other)
    assert abs(seconds({}, stage, other) / right - 1) > 0.25
    assert seconds(found.learnt, stage, other) == pytest.approx(right, rel=0.08)


def test_spikes_are_outvoted_and_counted(found: Calibration, request: pytest.FixtureRequest) -> None:
    """Steps 20 and 40 of 20 to 59 take three times as long; 3 % of noise is never a fifth."""
    spikes = {"calm": 0, "spikes": 2}[request.node.callspec.id]
    assert {(fit.num_steps, fit.num_outvoted) for fit in found.stages} == {(WINDOW, spikes)}


def test_steps_are_predicted_from_those_before_to_about_their_noise() -> None:
    """The mean of a normal's absolute value is 0.8 of its standard deviation."""
    truth = machine(SLOW)
    steps = samples_of(OUTLINE, MODELS, ran(), run_log(truth, 60).steps)
    ahead = one_step_ahead({}, steps, judged=10)
    assert set(ahead) == set(STAGES)
    for errors in ahead.values():
        assert len(errors) == 10
        assert sum(errors) / len(errors) < 0.05
    assert one_step_ahead({}, steps[:WARM_UP]) == {}


def test_roles_learn_apart_since_they_reach_other_shares_of_the_peak(found: Calibration) -> None:
    gemm = {role: found.learnt["H100", role].efficiencies.values[OpClass.GEMM].value for role in ROLES}
    assert gemm["training"] == pytest.approx(0.25, rel=0.2)
    assert gemm["inference"] == pytest.approx(0.3, rel=0.2)


def test_model_stage_that_the_plan_leaves_out_teaches_nothing() -> None:
    only = {"actor_training": ran()["actor_training"]}
    found = calibrate(OUTLINE, MODELS, only, run_log(machine(SLOW), 30), {})
    assert set(found.learnt) == {("H100", "training"), ("H100", "inference")}, "old_log_prob runs on the same devices"
    assert {fit.stage for fit in found.stages} == {"actor_training", "actor_inference"}


def test_log_of_other_model_stages_than_the_plans_is_refused() -> None:
    log = RunLog((LoggedStep(1, None, 500.0, None, {"critic_training": 2.0}),), 0)
    with pytest.raises(UserError, match="the log has times of critic_training"):
        calibrate(OUTLINE, MODELS, ran(), log, {})


def test_short_log_teaches_and_says_that_nothing_was_predicted_ahead() -> None:
    found = calibrate(OUTLINE, MODELS, ran(), run_log(machine(SLOW), 5), {})
    assert {(fit.num_steps, fit.one_step_ahead) for fit in found.stages} == {(5, None)}
    assert found.learnt["H100", "training"].efficiencies.values[OpClass.GEMM].observations == 5


def test_what_was_known_before_is_the_start_and_stays_for_other_kinds() -> None:
    other = AcceleratorModel(shipped("A100-80GB"))
    known = {**machine(SLOW), ("A100-80GB", "training"): other}
    found = calibrate(OUTLINE, MODELS, ran(), run_log(machine(SLOW), 30), known)
    assert found.learnt["A100-80GB", "training"] is other
    before = found.before["H100", "training"].efficiencies.values
    assert before[OpClass.GEMM].value == 0.25


def test_one_log_brings_back_a_class_that_has_changed_by_a_third_after_six_logs() -> None:
    """Learnt on other days, and learnt on from it when the machine has another speed."""
    only, known = {"actor_training": ran()["actor_training"]}, dict[Key, AcceleratorModel]()
    for seed in range(6):
        known = dict(calibrate(OUTLINE, MODELS, only, run_log(machine(SLOW), WARM_UP, seed=seed), known).learnt)
    faster = machine({**SLOW, "training": {OpClass.GEMM: 0.25 * 4 / 3}})
    found = calibrate(OUTLINE, MODELS, only, run_log(faster, WARM_UP, seed=6), known)
    right = seconds(faster, "actor_training", PlannedStage(pp=2, dp=4))
    assert seconds(found.learnt, "actor_training", PlannedStage(pp=2, dp=4)) == pytest.approx(right, rel=0.03)
    gemm = found.learnt["H100", "training"].efficiencies.values[OpClass.GEMM]
    assert gemm.observations == 7 * WARM_UP


def test_work_of_a_sample_is_what_a_step_of_the_plan_is_priced_with() -> None:
    """All updates of a step, and the one greedy response of a baseline, at the lengths of the log."""
    work = {"prompts_per_step": 64, "samples_per_prompt": 4, "prompt_tokens": 200, "response_tokens": 999}
    declared = {
        "name": "o",
        "algorithm": "remax",
        "models": {"actor": "a.json", "reward": "rule"},
        "nodes": [{"kind": "H100"}],
    }
    outline = parse_outline({**declared, "workload": {**work, "longest_response_tokens": 1500, "updates_per_step": 4}})
    logged = ("actor_generation", "baseline_generation", "reference_inference", "actor_training")
    step = LoggedStep(1, 200.0, 999.0, 1500.0, dict.fromkeys(logged, 1.0))
    (samples,) = samples_of(outline, MODELS, ran(), [step])
    roomy = outline.model_copy(update={"nodes": (OUTLINE.nodes[0].model_copy(update={"memory": 2**40}),)})
    pricer, known = Pricer(roomy, MODELS, {}), AcceleratorModel(shipped("H100"))
    runs = {holder: execution(pricer, holder, 0, PlannedStage(dp=8)) for holder in outline.workflow.holders}
    expected = {s: pricer.seconds(s, 0, run) for holder, run in runs.items() for s in outline.workflow.roles(holder)}
    assert {sample.stage: known.seconds(sample.work) for sample in samples} == pytest.approx(expected)


def test_only_the_last_steps_count_so_that_a_drift_is_followed() -> None:
    faster, other = machine({**SLOW, "training": {OpClass.GEMM: 0.4}}), PlannedStage(pp=2, dp=4)
    steps = run_log(machine(SLOW), WINDOW).steps + run_log(faster, WINDOW, seed=1).steps
    found = calibrate(OUTLINE, MODELS, {"actor_training": ran()["actor_training"]}, RunLog(steps, 0), {})
    right = seconds(faster, "actor_training", other)
    assert seconds(found.learnt, "actor_training", other) == pytest.approx(right, rel=0.05)


def test_generation_of_an_asynchronous_job_is_not_learnt_from() -> None:
    """verl then logs how long training waited for it."""
    outline = OUTLINE.model_copy(update={"asynchronous": True})
    found = calibrate(outline, MODELS, ran(), run_log(machine(SLOW), 5), {})
    assert {fit.stage for fit in found.stages} == set(STAGES) - {"actor_generation"}


def test_generation_takes_as_many_sequences_as_fit_unless_the_plan_says() -> None:
    pricer = Pricer(OUTLINE, MODELS, {})
    assert execution(pricer, "actor_generation", 0, PlannedStage(dp=8)).micro_batch == 64 * 4 // 8
    assert execution(pricer, "actor_generation", 0, PlannedStage(dp=8, micro_batch=4)).micro_batch == 4
    assert execution(pricer, "actor_training", 0, PlannedStage(dp=8)).micro_batch == 1
