"""`nereus plan` of an outline as a person meets it: a process of its own, its exit code, its two streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run_command import QUICKSTART, ROOT, assert_one_message, nereus_command

EXAMPLE = str(ROOT / "examples" / "outlines" / "llama-8b-ppo.yaml")


@pytest.fixture(scope="module")
def answers() -> dict[int, dict[str, Any]]:
    ended = nereus_command("plan", EXAMPLE, "--gpus", "2,16", "--top", "2", "--explain", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    return {answer["devices"]: answer for answer in json.loads(ended.stdout.splitlines()[-1])["answers"]}


def test_plans_of_the_example_are_one_json_object(answers: dict[int, dict[str, Any]]) -> None:
    plans = answers[16]["plans"]
    assert [plan["l_step_seconds"] for plan in plans] == sorted(plan["l_step_seconds"] for plan in plans)
    holders = plans[0]["holders"]
    assert set(holders) == {
        "actor_generation",
        "reference_inference",
        "reward_inference",
        "actor_training",
        "critic_training",
    }
    for holder in holders.values():
        assert len(holder["devices"]) == holder["tp"] * holder["pp"] * holder["dp"]
    assert plans[0]["peak_bytes"]["H100"] <= 0.9 * plans[0]["capacity_bytes"]["H100"]


def test_price_of_a_step_is_that_of_its_devices(answers: dict[int, dict[str, Any]]) -> None:
    plan = answers[16]["plans"][0]
    assert plan["cost_per_step"] == pytest.approx(plan["devices_used"] * 2.5 * plan["l_step_seconds"] / 3600)
    assert plan["cost_per_million_tokens"] == pytest.approx(plan["cost_per_step"] / (512 * 1024) * 1e6)


def test_too_few_devices_have_no_plan_and_say_why(answers: dict[int, dict[str, Any]]) -> None:
    assert answers[2]["plans"] == []
    assert "fit" in answers[2]["problem"]


def test_tables_name_every_model_stage_and_the_forecast(tmp_path: Path) -> None:
    lengths = tmp_path / "l.csv"
    lengths.write_text("step,response_length_mean\n1,1024\n50,9000\n", encoding="utf-8")
    ended = nereus_command("plan", EXAMPLE, "--lengths", str(lengths))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(stage in ended.stdout for stage in ("actor_generation", "critic_training", "critic_inference"))
    assert "At step 50, with responses of 9000 tokens, plan 1 runs out of memory." in ended.stdout


def test_options_of_outlines_are_refused_for_a_job_file() -> None:
    assert_one_message(nereus_command("plan", str(QUICKSTART), "--explain"), ["--explain", "it is for outlines"])


def test_more_devices_than_the_nodes_have_are_refused() -> None:
    assert_one_message(nereus_command("plan", EXAMPLE, "--gpus", "17"), ["--gpus", "17", "1 to 16"])


def test_export_prints_overrides_to_paste() -> None:
    ended = nereus_command("plan", EXAMPLE, "--export", "verl", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    (answer,) = json.loads(ended.stdout.splitlines()[-1])["answers"]
    assert "trainer.nnodes=2" in answer["export"]["overrides"]
    assert {len(holder["devices"]) for holder in answer["plans"][0]["holders"].values()} == {16}


def test_export_of_a_part_of_a_node_is_refused_since_verl_has_equal_nodes() -> None:
    ended = nereus_command("plan", EXAMPLE, "--gpus", "12", "--export", "verl", "--json")
    (answer,) = json.loads(ended.stdout.splitlines()[-1])["answers"]
    assert answer["plans"] == []
    assert "equal nodes" in answer["problem"]


def test_export_to_an_unknown_framework_is_refused() -> None:
    assert_one_message(nereus_command("plan", EXAMPLE, "--export", "trl"), ["--export", "'trl'", "verl"])
