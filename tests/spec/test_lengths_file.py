"""Response lengths from logs and curves of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereus.errors import UserError
from nereus.spec.lengths import read_lengths


def write(folder: Path, text: str) -> Path:
    path = folder / "l.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "step,response_length_mean\n1,10\n2,20.5\n",
        "gradient_step,x,response_length/mean\n1,0,10\n2,0,20.5\n",
        "step,completion_length\n1,10\n\n1.5,\n2,20.5\n",
        "step, completion_length \n1, 10\n2.0,20.5\n",
    ],
)
def test_lengths_are_read_under_the_names_that_logs_use(tmp_path: Path, text: str) -> None:
    assert read_lengths(write(tmp_path, text)) == ((1, 10.0), (2, 20.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,reward\n1,10\n", "no column response_length_mean"),
        ("step,response_length\n1,ten\n", "line 2: response_length 'ten'"),
        ("step,response_length\n2,10\n1,10\n", "line 3: step '1'.*must rise"),
        ("step,response_length\n1,1.7e308\n", "line 2: response_length '1.7e308'.*at most"),
        ("step,response_length\n1.5,10\n", "line 2: step '1.5'.*whole number"),
        ("step,response_length\n1,10\n2,0\n", "line 3: response_length '0'.*above 0"),
        ("step,response_length\n1,-3\n", "line 2: response_length '-3'.*above 0"),
        ("step,response_length\n", "no row"),
        ("", "no column step"),
    ],
)
def test_wrong_lengths_are_refused_by_line_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_lengths(write(tmp_path, text))


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        read_lengths(tmp_path / "none.csv")


def test_published_logs_and_curves_are_read(data_dir: Path) -> None:
    for name in ("verl_softgrpo_7B_normal_grpo", "curve_dapo_qwen2.5-32b_response_length"):
        assert len(read_lengths(data_dir / "lengths" / f"{name}.csv")) > 50
