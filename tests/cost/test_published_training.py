"""The cost model on published measurements that it was not fitted on: what it must not fall behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.costing import generation, stages, training
from benchmarks.costing.contest import calibrated, guess
from benchmarks.costing.measured import gpt_a100, sweep_h100
from benchmarks.costing.score import score
from nereus.planner.calibration import one_step_ahead


@pytest.fixture(scope="module")
def sweep(data_dir: Path) -> dict[str, dict[str, float]]:
    return training.judge_sweep(data_dir)


def test_a_model_that_was_left_out_gets_a_near_best_plan_that_runs(sweep: dict[str, dict[str, float]]) -> None:
    found = sweep["each_model_left_out"]
    assert found["median_regret"] <= 0.01
    assert found["p90_regret"] <= 0.07
    assert found["infeasible_choices"] == 0
    assert found["kendall_tau_median"] >= 0.85
    assert found["mape_memory"] <= 0.08


def test_times_near_the_best_plan_are_right_within_a_few_percent(sweep: dict[str, dict[str, float]]) -> None:
    assert sweep["each_model_left_out"]["mape_latency_within_2x"] <= 0.08


def test_a_scale_that_was_not_fitted_gets_a_near_best_plan(sweep: dict[str, dict[str, float]]) -> None:
    found = sweep["fitted_8_to_32_judged_at_64"]
    assert found["median_regret"] <= 0.03
    assert found["p90_regret"] <= 0.12


def test_three_probes_at_the_new_scale_find_the_best(sweep: dict[str, dict[str, float]]) -> None:
    assert sweep["with_three_probes"]["p90_regret"] <= 0.07


def test_the_model_ranks_plans_better_than_the_rule_of_thumb(sweep: dict[str, dict[str, float]]) -> None:
    ours, rule = sweep["each_model_left_out"], sweep["least_model_parallelism"]
    assert ours["kendall_tau_median"] > rule["kendall_tau_median"] + 0.2
    assert ours["share_within_10pct_strict"] >= rule["share_within_10pct_strict"]


def test_nothing_measured_still_ranks_plans(sweep: dict[str, dict[str, float]]) -> None:
    assert sweep["nothing_measured"]["kendall_tau_median"] >= 0.7


def test_four_runs_calibrate_other_hardware(data_dir: Path) -> None:
    rows = [row for row in gpt_a100(data_dir, "training_layouts_a100_multi_node") if row.group[1] == "64"]
    rows.sort(key=lambda row: row.name)
    model = calibrated("A100-80GB", rows[::8])
    found = score(guess(model, row) for place, row in enumerate(rows) if place % 8)
    assert found["median_regret"] <= 0.02
    assert found["kendall_tau_median"] >= 0.8


def test_a_token_step_is_predicted_for_a_model_and_tp_that_were_left_out(data_dir: Path) -> None:
    found = generation.left_out(generation.static_batch(data_dir, "token"), "A100-80GB")
    assert found["mape_latency"] <= 0.12


def test_the_chosen_tp_of_generation_loses_little(data_dir: Path) -> None:
    assert generation.best_tp(generation.full_load(data_dir))["worst_loss"] <= 0.08


def test_stage_times_of_an_rl_run_are_predicted_one_step_ahead(data_dir: Path) -> None:
    name, steps = next(stages.runs(data_dir))
    found = one_step_ahead(stages.GUESSES, steps[:200], 9)
    for stage in stages.STAGES:
        errors = found[stage]
        assert sum(errors) / len(errors) <= 0.08, f"{stage} of {name}"


def test_configurations_that_ran_twice_are_judged_by_the_better_run(data_dir: Path) -> None:
    rows = sweep_h100(data_dir)
    assert len({(row.group, row.name) for row in rows}) == len(rows) == 1325
