"""Logs of verl runs: JSON line by line as its file logger writes it, and the same as a CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from nereus.errors import UserError
from nereus.spec.lengths import read_lengths
from nereus.spec.run_log import LoggedStep, read_run

FIGURES: list[dict[str, Any]] = [
    {
        "response_length/mean": 512.5,
        "response_length/max": 1024,
        "prompt_length/mean": 100.25,
        "timing_s/gen": 20.5,
        "timing_s/old_log_prob": 3.0,
        "timing_s/ref": 2.5,
        "timing_s/update_actor": 8.25,
        "timing_s/step": 40.0,
        "actor/perf/max_memory_allocated_gb": 150.0,
    },
    {"response_length/mean": 600.0, "timing_s/gen": 24.0},
]
STEPS = (
    LoggedStep(
        1,
        100.25,
        512.5,
        1024.0,
        {"actor_generation": 20.5, "actor_inference": 3.0, "reference_inference": 2.5, "actor_training": 8.25},
    ),
    LoggedStep(2, None, 600.0, None, {"actor_generation": 24.0}),
)


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """As verl 0.9's FileLogger writes a log."""
    path = folder / "run.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_log_of_verls_file_logger_is_read(tmp_path: Path) -> None:
    validation = {"step": 0, "data": {"val-core/gsm8k/reward/mean@1": 0.1}}
    rows = [validation, *({"step": at, "data": figures} for at, figures in enumerate(FIGURES, 1))]
    found = read_run(jsonl(tmp_path, rows))
    assert found.steps == STEPS
    assert found.num_left_out == 1


@pytest.mark.parametrize("separator", ["/", "_"])
def test_csv_says_the_same_whichever_way_its_columns_are_spelled(tmp_path: Path, separator: str) -> None:
    path, columns = tmp_path / "run.csv", list(FIGURES[0])
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["step", *(column.replace("/", separator) for column in columns)])
        out.writerows([at, *(figures.get(column, "") for column in columns)] for at, figures in enumerate(FIGURES, 1))
    assert read_run(path).steps == STEPS


def test_lengths_are_read_from_a_log_too(tmp_path: Path) -> None:
    path = jsonl(tmp_path, [{"step": at, "data": figures} for at, figures in enumerate(FIGURES, 1)])
    assert read_lengths(path) == ((1, 512.5), (2, 600.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,timing_s_gen\n1,2\n", "no column response_length_mean"),
        ("step,response_length_mean\n1,2\n", "no column of stage times.*timing_s/gen"),
        ("step,response_length_mean,timing_s_gen\n1,2,0\n", "no row has a length of responses and a stage time"),
        ("step,response_length_mean,timing_s_gen\n1,2,slow\n", "line 2: timing_s_gen 'slow'.*finite number"),
        ('{"step": 1, "data": {"response_length/mean": true, "timing_s/gen": 1}}', "line 1: response_length/mean True"),
        ('{"step": 1, "data": {"response_length/mean": NaN, "timing_s/gen": 1}}', "line 1: response_length/mean nan"),
        ('{"step": 1}\n[2]\n', r"line 2: '\[2\]' is not allowed; it must be one JSON object"),
        ('{"step": 1}\n{"step": \n', "line 2: it must be one JSON object"),
    ],
)
def test_wrong_logs_are_refused_by_line_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_run(path)


def test_published_logs_are_read_whole(data_dir: Path) -> None:
    found = read_run(data_dir / "lengths" / "verl_softgrpo_7B_normal_grpo.csv")
    assert len(found.steps) == 625
    assert found.steps[0].response_tokens == 5754.05
    assert found.steps[0].seconds["actor_training"] == 79.3151
