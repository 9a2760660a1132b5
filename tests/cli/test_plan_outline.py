"""`nereus plan` of an outline as a person meets it: a process of its own, its exit code, its two streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nereus.cli.plan import Asked, device_counts, plan
from nereus.cli.plan_outline import Answer
from nereus.errors import UserError
from nereus.integrations.openrlhf.flags import OPENRLHF
from nereus.planner.found import Report
from nereus.planner.rules import Rules, Shared
from tests.cli.test_run_command import QUICKSTART, ROOT, assert_one_message, nereus_command
from tests.integrations.outlines import outline, planner
from tests.planner.test_outlined import planner as small_planner

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


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("17", ["17", "1 to 16"]),
        ("99999999999999999999", ["1 to 16"]),
        ("1_6", ["'1_6'", "such as 4,8"]),
        ("8,8", ["'8,8'", "once"]),
        ("", ["''", "such as 4,8"]),
        ("-4", ["'-4'", "such as 4,8"]),
    ],
)
def test_numbers_of_devices_that_are_none_are_refused(gpus: str, words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        device_counts(gpus, 16, "the outline's nodes have")
    assert all(word in str(refused.value) for word in ("--gpus", *words))


def test_numbers_of_devices_are_planned_in_the_order_given() -> None:
    assert device_counts("16, 4", 16, "") == [16, 4]
    assert device_counts(None, 16, "") == [16]


@pytest.mark.parametrize(("text", "seen"), [("", "it is empty"), ("# nothing\n", "it is empty"), ("- 1\n", "it is a list")])
def test_file_without_fields_is_neither_a_job_file_nor_an_outline(tmp_path: Path, text: str, seen: str) -> None:
    path = tmp_path / "o.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"{seen}; it must have the fields of a job file or of an outline"):
        plan(path, Asked())


def test_memory_is_readable_on_a_narrow_terminal() -> None:
    """80 columns, where no terminal is: six holders' columns would be cut."""
    words = nereus_command("plan", EXAMPLE).stdout
    assert "…" not in words
    assert "critic_training: parameters " in words


def test_export_prints_overrides_to_paste() -> None:
    ended = nereus_command("plan", EXAMPLE, "--export", "verl", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    (answer,) = json.loads(ended.stdout.splitlines()[-1])["answers"]
    assert "trainer.nnodes=2" in answer["export"]["overrides"]
    assert {len(holder["devices"]) for holder in answer["plans"][0]["holders"].values()} == {16}
    cost = answer["export"]["without_rules"]
    assert cost["broken"]
    assert cost["l_step_seconds"] < answer["plans"][0]["l_step_seconds"]


def test_export_to_openrlhf_names_the_rules_that_cost_time_and_prints_flags() -> None:
    ended = nereus_command("plan", EXAMPLE, "--export", "openrlhf")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Without openrlhf's rules a step would take" in ended.stdout
    assert "Plan 1 for openrlhf 0.11.2:\n  --algo.advantage.estimator gae\n  --train.colocate_all\n" in ended.stdout


def test_export_of_a_part_of_a_node_is_refused_since_verl_has_equal_nodes() -> None:
    ended = nereus_command("plan", EXAMPLE, "--gpus", "12", "--export", "verl", "--json")
    (answer,) = json.loads(ended.stdout.splitlines()[-1])["answers"]
    assert answer["plans"] == []
    assert "equal nodes" in answer["problem"]


def test_models_that_cannot_agree_are_told_in_what_they_must() -> None:
    found = planner(OPENRLHF, outline())
    answer = Answer(count=8, planner=found, plans=(), report=Report(), seconds=0.0, framework=OPENRLHF)
    assert "not together, where one ds.tensor_parallel_size holds for all models under DeepSpeed" in answer.problem


def test_export_to_an_unknown_framework_is_refused() -> None:
    assert_one_message(nereus_command("plan", EXAMPLE, "--export", "trl"), ["--export", "'trl'", "verl"])


def test_answer_without_a_plan_names_shared_settings_and_pins() -> None:
    """Four models with two optimizers are too much for four devices of 5 GiB, one by one they are not."""
    tight = {"nodes": [{"kind": "H100", "memory": "5GiB", "devices": 4}], "pins": {"actor_training": {"zero1": True}}}
    alike = Shared("one PP degree holds for all", lambda option: option.run.pp, frozenset({"actor_training"}))
    asked = small_planner(rules=Rules(shared=(alike,)), **tight)
    plans, report = asked.best(1)
    said = Answer(count=4, planner=asked, plans=plans, report=report, seconds=0.0).problem
    assert said.endswith("not together, where one PP degree holds for all, with pins.actor_training")
