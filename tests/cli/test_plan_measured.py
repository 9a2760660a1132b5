"""`nereus plan` of an outline with measurements: what a log teaches, what is kept of it, and which runs to measure next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run_command import QUICKSTART, ROOT, assert_one_message, nereus_command

EXAMPLE = str(ROOT / "examples" / "outlines" / "llama-8b-ppo.yaml")
RAN = {
    "actor_generation": {"tp": 2, "dp": 8},
    "reference_inference": {"tp": 2, "dp": 8},
    "actor_training": {"tp": 2, "pp": 2, "dp": 4, "zero1": True, "micro_batch": 2},
}


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def log(folder: Path, count: int = 30) -> str:
    """A run as verl logs it, whose stages take so many seconds per token of the mean response."""
    rows = []
    for step in range(1, count + 1):
        mean = 800.0 + 10 * step
        figures = {
            "response_length/mean": mean,
            "response_length/max": 4 * mean,
            "prompt_length/mean": 500.0,
            "timing_s/gen": 0.12 * mean,
            "timing_s/ref": 0.004 * mean,
            "timing_s/update_actor": 0.04 * mean,
        }
        rows.append(json.dumps({"step": step, "data": figures}))
    return write(folder, "run.jsonl", "\n".join(rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


@pytest.fixture(scope="module")
def answer(folder: Path) -> dict[str, Any]:
    options = ["--calibrate", log(folder), "--ran", write(folder, "ran.json", json.dumps(RAN))]
    kept = ["--save-efficiencies", str(folder / "e.json"), "--suggest-probes", "2"]
    ended = nereus_command("plan", EXAMPLE, *options, *kept, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_what_the_log_taught_is_in_the_object(answer: dict[str, Any]) -> None:
    found = answer["calibration"]
    assert (found["steps"], found["left_out"]) == (30, 0)
    assert set(found["stages"]) == set(RAN)
    for stage in found["stages"].values():
        assert (stage["kind"], stage["steps"], stage["judged"]) == ("H100", 30, 10)
        assert stage["error_one_step_ahead"] < 0.1
    touched = {(one["role"], one["class"]) for one in found["efficiencies"]}
    assert {("training", "gemm"), ("training", "tp_node"), ("generation", "weights")} <= touched
    assert all(one["after"]["observations"] == 30 and one["before"]["observations"] == 0 for one in found["efficiencies"])


def test_plans_are_priced_with_what_was_learnt(answer: dict[str, Any]) -> None:
    """The log's generation takes 0.12 s per token of the mean response; at the outline's 1,024 and what ships with H100 the
    layout takes 47 s."""
    ended = nereus_command("plan", EXAMPLE, "--json")
    before, after = (
        found["answers"][0]["plans"][0]["stage_seconds"]["actor_generation"]
        for found in (json.loads(ended.stdout.splitlines()[-1]), answer)
    )
    assert before < 60
    assert after > 1.5 * before


def test_saved_efficiencies_give_the_same_plans_without_the_log(folder: Path, answer: dict[str, Any]) -> None:
    ended = nereus_command("plan", EXAMPLE, "--efficiencies", str(folder / "e.json"), "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    again = json.loads(ended.stdout.splitlines()[-1])
    assert again["answers"][0]["plans"] == answer["answers"][0]["plans"]
    assert "calibration" not in again


def test_probes_are_runs_of_holders_in_layouts(answer: dict[str, Any]) -> None:
    probes = answer["answers"][0]["probes"]
    assert 1 <= len(probes) <= 2
    for probe in probes:
        assert probe["num_devices"] == probe["tp"] * probe["pp"] * probe["dp"]
        assert probe["saves_seconds"] > 0
        assert set(probe["stage_spread"]) == set(probe["stage_seconds"])


def test_tables_tell_prior_against_learnt_and_the_runs_to_measure(folder: Path) -> None:
    options = ["--calibrate", log(folder), "--ran", write(folder, "ran.json", json.dumps(RAN)), "--suggest-probes", "1"]
    ended = nereus_command("plan", EXAMPLE, *options)
    assert (ended.returncode, ended.stderr) == (0, "")
    for text in ("The log: 30 steps", "one step ahead", "before", "learnt", "Runs whose times would change the choice"):
        assert text in ended.stdout


def test_plan_that_nereus_printed_says_how_the_run_ran(folder: Path) -> None:
    ended = nereus_command("plan", EXAMPLE, "--top", "1", "--json")
    plan = write(folder, "printed.json", ended.stdout.splitlines()[-1])
    again = nereus_command("plan", EXAMPLE, "--calibrate", log(folder, 5), "--ran", plan, "--json")
    assert (again.returncode, again.stderr) == (0, "")
    assert set(json.loads(again.stdout.splitlines()[-1])["calibration"]["stages"]) == set(RAN)


def test_log_without_the_plan_that_ran_is_refused_and_says_what_to_give(folder: Path) -> None:
    assert_one_message(nereus_command("plan", EXAMPLE, "--calibrate", log(folder)), ["--calibrate", "which layout", "--ran"])


def test_options_that_need_a_log_are_refused_without_one(folder: Path) -> None:
    for option in ("--ran", "--save-efficiencies"):
        assert_one_message(nereus_command("plan", EXAMPLE, option, str(folder / "x.json")), [option, "--calibrate"])


def test_file_that_is_no_file_of_efficiencies_is_refused(folder: Path) -> None:
    path = write(folder, "wrong.json", '{"version": 7, "kinds": {}}')
    assert_one_message(nereus_command("plan", EXAMPLE, "--efficiencies", path), ["wrong.json: version", "7", "must be 1"])


def test_measuring_options_are_refused_for_a_job_file() -> None:
    assert_one_message(
        nereus_command("plan", str(QUICKSTART), "--suggest-probes", "2"), ["--suggest-probes", "for outlines"]
    )
