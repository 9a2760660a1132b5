"""`nereus simulate` as a person meets it: a process of its own, its exit code, its two streams."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nereus.cli.simulate import Asked, policy_names, simulate
from nereus.errors import UserError
from nereus.sim.policies import POLICIES
from tests.cli.test_run_command import QUICKSTART, ROOT, assert_one_message, nereus_command, python
from tests.sim.tiny import write
from tests.test_docs import first_cells, section, text


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def answer(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What --json says of a run in which two devices arrive; with its report."""
    outline, trace = files
    page = tmp_path_factory.mktemp("page") / "r.html"
    arguments = ("--availability", str(trace), "--gamma", "1", "--html", str(page), "--json")
    ended = nereus_command("simulate", str(outline), *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_run_is_one_json_object_whose_figures_agree(answer: dict[str, Any]) -> None:
    (run,) = answer["outcomes"]
    assert (answer["devices"], answer["pool"], run["policy"]) == (4, [[0.0, 2], [60.0, 4]], "nereus")
    assert run["duration_seconds"] == 300.0
    assert sum(run["spent_seconds"].values()) == pytest.approx(300.0)
    assert run["response_tokens"] == pytest.approx(run["steps"] * 64 * 8 * 2048)
    assert run["throughput_tokens_per_second"] == pytest.approx(run["response_tokens"] / 300.0)
    assert run["cost"] == pytest.approx((60 * 2 + 240 * 4) / 3600 * 2.0, rel=0.02)  # of the last step only its end is over
    assert [one["code"] for one in run["decisions"] if one["code"].startswith("admitted")] == ["admitted"]
    (moved,) = run["transitions"]
    assert moved["trigger"] == "the pool went from 2 to 4 devices"


def test_every_key_of_the_json_is_in_the_document(answer: dict[str, Any]) -> None:
    rows = first_cells(section(text("simulator.md"), "Output"))
    run = answer["outcomes"][0]
    keys = [*answer, *run, *run["spent_seconds"], *run["transitions"][0], *run["decisions"][0]]
    assert sorted(key for key in keys if key not in rows) == []


def test_every_policy_is_in_the_document() -> None:
    assert first_cells(section(text("simulator.md"), "Policies")) == list(POLICIES)


def test_table_has_every_transition_and_the_time_by_cause(files: tuple[Path, Path], answer: dict[str, Any]) -> None:
    outline, trace = files
    ended = nereus_command("simulate", str(outline), "--availability", str(trace), "--gamma", "1")
    assert (ended.returncode, ended.stderr) == (0, "")
    (run,) = answer["outcomes"]
    words = re.sub(r"\s+", " ", ended.stdout)
    assert f"{run['throughput_tokens_per_second']:,.1f}" in words
    assert f"{run['transitions'][0]['seconds']:.2f}" in words
    assert f"{run['spent_seconds']['steps']:,.1f}" in words
    assert "6 Extend" in words
    assert "2 to 4 of 4 devices over 5 min" in words
    assert "Without --lengths responses have a mean of 2048 tokens throughout." in words
    assert f"{run['decisions'][-1]['code']} after step" in words


def run_here(capsys: pytest.CaptureFixture[str], outline: Path, **asked: Any) -> dict[str, Any]:
    """The only outcome of a run in this process."""
    simulate(outline, Asked(as_json=True, **asked))
    (found,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert isinstance(found, dict)
    return found


def test_same_seed_gives_the_same_run_in_any_process_and_another_seed_another_world(
    files: tuple[Path, Path], answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    outline, trace = files
    (there,) = answer["outcomes"]
    assert run_here(capsys, outline, availability=trace, gamma=1.0) == there
    first, other = (run_here(capsys, outline, availability=trace, steps=4, seed=seed) for seed in (0, 1))
    assert first["steps"] == other["steps"] == 4
    assert first["duration_seconds"] != other["duration_seconds"]


def test_several_policies_are_compared_with_the_first(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """All that there are, on one scenario."""
    outline, trace = files
    simulate(outline, Asked(availability=trace, policy=",".join(POLICIES), steps=20, as_json=True))
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert [one["policy"] for one in outcomes] == list(POLICIES)
    first = outcomes[0]["throughput_tokens_per_second"]
    assert [one["of_first"] for one in outcomes] == [one["throughput_tokens_per_second"] / first for one in outcomes]


def test_comparison_has_a_record_for_each_policy(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    outline, trace = files
    simulate(outline, Asked(availability=trace, policy="nereus,static-smallest", steps=3))
    words = capsys.readouterr().out
    assert "2 policies" in words
    assert "1.000" in words
    assert "static-smallest" in words


def test_drift_makes_steps_slower_and_by_no_more_than_its_factor(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outline, trace = files
    drift = tmp_path / "d.csv"
    drift.write_text("time_s,device_or_link,factor\n0,node:0,10\n", encoding="utf-8")
    usual, slow = (run_here(capsys, outline, availability=trace, steps=4, drift=file) for file in (None, drift))
    assert 1.5 < slow["spent_seconds"]["steps"] / usual["spent_seconds"]["steps"] < 10.5


def test_longer_responses_are_followed(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outline, trace = files
    lengths = tmp_path / "l.csv"
    lengths.write_text("step,response_length_mean\n1,1000\n3,2000\n", encoding="utf-8")
    run = run_here(capsys, outline, availability=trace, steps=4, lengths=lengths)
    assert [point[1:] for point in run["lengths"]] == [[1, 1000.0], [2, 1500.0], [3, 2000.0], [4, 2000.0]]
    assert run["response_tokens"] == pytest.approx(64 * 8 * (1000 + 1500 + 2000 + 2000))


def test_devices_that_go_without_a_word_are_survived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four devices, two at once: replicas are left, so the step is done again on them; the seconds add up."""
    outline, trace = write(tmp_path, ((0.0, 4), (60.0, 2), (120.0, 2)))
    run = run_here(capsys, outline, availability=trace, notice_s=0.0)
    assert run["spent_seconds"]["redone"] > 0
    assert run["spent_seconds"]["paused"] == 0
    assert sum(run["spent_seconds"].values()) == pytest.approx(120.0)


def test_neither_ray_nor_torch_is_loaded() -> None:
    script = "import sys, nereus.cli.simulate; print([m for m in ('ray', 'torch') if m in sys.modules])"
    assert python("-c", script).stdout.strip() == "[]"


def test_job_file_is_refused_with_what_to_write(files: tuple[Path, Path]) -> None:
    ended = nereus_command("simulate", str(QUICKSTART), "--availability", str(files[1]))
    assert_one_message(ended, ["quickstart.yaml", "it is a job file", "write an outline", "docs/outline.md"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "nerus"}, ["--policy", "'nerus'", "nereus"]),
        ({"policy": "nereus,nereus"}, ["--policy", "once"]),
        ({"policy": ""}, ["--policy", "''"]),
        ({"gamma": 1.5}, ["--gamma", "1.5", "0 to 1"]),
        ({"gamma": float("nan")}, ["--gamma", "nan", "0 to 1"]),
        ({"notice_s": -1.0}, ["--notice", "-1.0", "0 or more"]),
        ({"notice_s": float("inf")}, ["--notice", "inf", "number of seconds"]),
        ({"html": Path("nowhere/at/all.html")}, ["--html", "nowhere", "a folder that is there"]),
        ({"availability": Path("nowhere.csv")}, ["nowhere.csv", "there is no such file"]),
        ({"lengths": Path("nowhere.csv")}, ["nowhere.csv", "there is no such file"]),
        ({"drift": Path("nowhere.csv")}, ["nowhere.csv", "there is no such file"]),
    ],
)
def test_wrong_option_is_refused_with_its_value_and_what_is_allowed(
    files: tuple[Path, Path], changes: dict[str, Any], words: list[str]
) -> None:
    outline, trace = files
    with pytest.raises(UserError) as refused:
        simulate(outline, Asked(**{"availability": trace, **changes}))
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("points", "words"),
    [(((0.0, 4),), ["--availability", "time_s", "two or more"]), (((0.0, 0), (60.0, 0)), ["available_gpus", "above 0"])],
)
def test_trace_in_which_nothing_can_run_is_refused(
    tmp_path: Path, points: tuple[tuple[float, int], ...], words: list[str]
) -> None:
    outline, trace = write(tmp_path, points)
    with pytest.raises(UserError) as refused:
        simulate(outline, Asked(availability=trace))
    assert all(word in str(refused.value) for word in words)


def test_model_whose_state_cannot_be_moved_is_refused_with_the_reason(tmp_path: Path) -> None:
    outline, trace = write(tmp_path)
    config = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "model.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="quant"):
        simulate(outline, Asked(availability=trace))


def test_policies_are_run_in_the_order_in_which_they_are_named() -> None:
    assert policy_names("restart, nereus") == ["restart", "nereus"]


def test_example_is_a_trace_that_the_example_outline_can_follow() -> None:
    """Two steps of it: the whole takes minutes."""
    folder = ROOT / "examples" / "outlines"
    ended = nereus_command(
        "simulate",
        str(folder / "llama-8b-ppo.yaml"),
        "--availability",
        str(folder / "made-up-pool.csv"),
        "--steps",
        "2",
        "--json",
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["outcomes"][0]["steps"], found["pool"][0]) == (2, [0.0, 16])
