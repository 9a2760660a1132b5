"""The command line as a person meets it: a process of its own, its exit code and its two streams. No Ray is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import nereus

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
POOL = ROOT / "examples" / "quickstart-pool.csv"


def nereus_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `nereus ARGUMENTS` on one core and wait for its end."""
    return python("-m", "nereus", *arguments)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, preexec_fn=_one_core, check=False
    )


def _one_core() -> None:
    """What is too fast for a machine depends on its cores; every machine has one."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def quickstart_with(folder: Path, path: str, value: Any) -> Path:
    """A copy of examples/quickstart.yaml with one field set, and the trace of its pool beside it."""
    data = yaml.safe_load(QUICKSTART.read_text())
    data["optimizer"]["learning_rate"] = 3e-3  # PyYAML takes 3.0e-3 for a string
    *parents, last = path.split(".")
    target = data
    for part in parents:
        target = target[part]
    target[last] = value
    shutil.copy(POOL, folder)
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(data))
    return job


WRONG = {
    "an unknown field": (
        "workload.prompts_per_stp",
        16,
        ["workload.prompts_per_stp", "16", "did you mean prompts_per_step"],
    ),
    "a tp that does not divide the heads": (
        "plan.actor_training",
        {"tp": 3, "dp": 1, "devices": "0-2"},
        ["plan.actor_training.tp", "3", "it must divide the 4 query heads", "1, 2 or 4"],
    ),
    "more devices than there are": (
        "plan.actor_training",
        {"tp": 2, "dp": 8, "micro_batch": 32},
        ["plan.actor_training.devices", "16", "the cluster has 8"],
    ),
    "a batch that dp does not divide": (
        "plan.actor_training",
        {"dp": 3, "devices": "0-2"},
        ["plan.actor_training.dp", "3", "it must divide the global batch of 256", "1, 2, 4 or 8"],
    ),
    "a trace that is not there": (
        "availability",
        "nowhere.csv",
        ["availability", "nowhere.csv", "there is no such file", "time_s and available_gpus"],
    ),
    "a script in a job that adapts": (
        "transitions",
        [{"step": 3, "stages": {"actor_training": {"dp": 2, "devices": "0-1"}}}],
        ["policy.adapt", "True", "with scripted transitions it must be false"],
    ),
    "a trace without a policy that follows it": (
        "policy.adapt",
        False,
        ["availability", "it needs policy.adapt true"],
    ),
    "a plan on devices that the trace does not have yet": (
        "plan.actor_training",
        {"dp": 8, "devices": "0-7", "micro_batch": 16},
        ["plan.actor_training.devices", "4-7"],
    ),
    "a speed above the cores": (
        "cluster.device.speed",
        0.2,
        ["cluster.device.speed", "0.2", "0.8 of the 1 cores together", "at most 0.1"],
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_job_file_with_a_mistake_ends_at_once_with_one_message_and_exit_code_2(wrong: str, tmp_path: Path) -> None:
    field, value, expected = WRONG[wrong]
    job = quickstart_with(tmp_path, field, value)
    ended = nereus_command("run", str(job), "--run-dir", str(tmp_path / "runs"))
    assert_one_message(ended, expected)
    assert not (tmp_path / "runs").exists()


def test_option_with_a_trace_that_is_not_there_ends_with_one_message_and_exit_code_2(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere.csv")
    arguments = ["run", str(QUICKSTART), "--run-dir", str(tmp_path / "runs"), "--availability", nowhere]
    assert_one_message(nereus_command(*arguments), ["availability", nowhere, "there is no such file"])
    assert not (tmp_path / "runs").exists()


def test_missing_job_file_ends_with_one_message_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.yaml"
    ended = nereus_command("run", str(path), "--run-dir", str(tmp_path / "runs"))
    assert_one_message(ended, [str(path)])
    assert not (tmp_path / "runs").exists()


def test_job_file_that_is_no_yaml_ends_with_one_message_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: quickstart\nsteps: [1, 2\n")
    assert_one_message(nereus_command("run", str(path), "--run-dir", str(tmp_path / "runs")), ["job.yaml", "line", "YAML"])


def assert_one_message(ended: subprocess.CompletedProcess[str], expected: list[str]) -> None:
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    for part in expected:
        assert part in line


def test_help_names_the_commands_and_the_options_of_run() -> None:
    first, run = nereus_command("--help"), nereus_command("run", "--help")
    assert first.returncode == run.returncode == 0
    assert all(command in first.stdout for command in ("run", "plan", "status", "replan"))
    assert all(option in run.stdout for option in ("JOB", "--steps", "--address", "--run-dir", "--json", "--availability"))


def test_version_is_that_of_the_package() -> None:
    ended = nereus_command("--version")
    assert (ended.returncode, ended.stdout) == (0, f"nereus {nereus.__version__}\n")


def test_command_without_arguments_shows_the_help() -> None:
    assert "Usage" in "".join(nereus_command().stdout.split("\n")[:3])


RUN_MAIN = """
import json, sys
sys.argv[1:] = json.loads({arguments!r})
try:
    from nereus.cli.app import main
    main()
finally:
    sys.stderr.write(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], 0), (["--version"], 0), (["run", "nowhere.yaml"], 2), (["plan", "nowhere.yaml"], 2)]
)
def test_neither_ray_nor_torch_is_loaded_before_a_job_starts(arguments: list[str], code: int) -> None:
    ended = python("-c", RUN_MAIN.format(arguments=json.dumps(arguments)))
    assert ended.returncode == code
    loaded = json.loads(ended.stderr.splitlines()[-1])
    assert "nereus" in loaded
    assert not {"ray", "torch"} & set(loaded)


def test_importing_nereus_loads_neither_ray_nor_torch() -> None:
    ended = python("-c", "import sys, nereus; print(*sys.modules)")
    assert ended.returncode == 0
    assert not {"ray", "torch", "pydantic", "typer"} & set(ended.stdout.split())


def test_plan_prints_the_best_plans_for_each_number_of_devices() -> None:
    ended = nereus_command("plan", str(QUICKSTART), "--gpus", "4,8", "--top", "2", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    (line,) = ended.stdout.splitlines()
    found = json.loads(line)
    assert found["job"] == "quickstart"
    assert [plan["devices"] for plan in found["plans"]] == [4, 4, 8, 8]
    for plan in found["plans"]:
        assert plan["l_step_seconds"] > 0
        assert 0 < plan["peak_bytes"] <= 0.9 * 24 * 2**20
        assert set(plan["stages"]) == {"actor_generation", "reference_inference", "actor_training"}
        for stage in plan["stages"].values():
            assert stage["tp"] * stage["pp"] * stage["dp"] <= plan["devices"]
    for best, next_best in (found["plans"][:2], found["plans"][2:]):
        assert best["l_step_seconds"] <= next_best["l_step_seconds"]


def test_plan_without_json_is_a_table_for_a_person() -> None:
    ended = nereus_command("plan", str(QUICKSTART), "--gpus", "8", "--top", "1")
    assert ended.returncode == 0
    assert "8 devices" in ended.stdout
    assert "actor_training" in ended.stdout


@pytest.mark.parametrize("gpus", ["0", "9", "4,99", "four", "4;8", ""])
def test_plan_for_a_wrong_number_of_devices_ends_with_one_message_and_exit_code_2(gpus: str) -> None:
    wrong = gpus.removeprefix("4,")
    assert_one_message(nereus_command("plan", str(QUICKSTART), "--gpus", gpus), ["--gpus", wrong, "is not allowed"])


def test_plan_of_a_missing_job_file_ends_with_one_message_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.yaml"
    assert_one_message(nereus_command("plan", str(path)), [str(path)])


@pytest.mark.parametrize("command", ["status", "replan"])
def test_command_for_a_running_job_ends_with_one_message_when_there_is_none(command: str) -> None:
    ended = nereus_command(command, "--url", "http://127.0.0.1:9")
    assert ended.returncode in (1, 2)
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert "127.0.0.1:9" in line
