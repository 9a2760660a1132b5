"""Examples by name: what a JOB argument means, what is listed, and that copies are whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nereus.cli.app import app
from nereus.cli.examples import about, file_or_example, shipped
from nereus.errors import UserError

FOLDER = Path(__file__).parents[2] / "examples"


def test_every_job_file_of_the_folder_is_shipped_by_its_name() -> None:
    files = set(FOLDER.rglob("*.yaml"))
    assert {path.stem for path in files} == set(shipped())
    assert set(shipped().values()) == files


def test_argument_that_names_an_example_is_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert file_or_example(Path("quickstart")) == FOLDER / "quickstart.yaml"


def test_file_wins_over_an_example_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text("name: mine\n")
    assert file_or_example(Path("quickstart")) == Path("quickstart")


def test_folder_of_that_name_is_no_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert file_or_example(Path("quickstart")) == FOLDER / "quickstart.yaml"


@pytest.mark.parametrize("job", ["gone.yaml", "jobs/quickstart"])
def test_argument_that_looks_like_a_file_is_left_alone(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(file_or_example(Path(job))) == str(Path(job))


def test_unknown_name_is_refused_with_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        file_or_example(Path("quickstrat"))
    assert [name for name in ("'quickstrat'", *shipped()) if name not in str(refused.value)] == []


@pytest.mark.parametrize(
    "command", [["plan", "nothing"], ["run", "nothing"], ["transition", "nothing", "--from=a", "--to=b"]]
)
def test_commands_take_their_job_through_the_examples(command: list[str]) -> None:
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, UserError)
    assert "no example of that name" in str(result.exception)


def test_list_has_a_sentence_for_each() -> None:
    result = CliRunner().invoke(app, ["examples"])
    assert [name for name in shipped() if name not in result.output] == []
    assert [name for name, path in shipped().items() if len(about(path)) < 30] == []


def test_copy_is_whole_and_is_what_is_told(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    result = CliRunner().invoke(app, ["examples", "--copy", str(target), "--json"])
    told = {example["name"]: Path(example["file"]) for example in json.loads(result.output)["examples"]}
    originals = {path.relative_to(FOLDER): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    assert {path.relative_to(target): path.read_bytes() for path in target.rglob("*") if path.is_file()} == originals
    assert set(told) == set(shipped())
    assert all(path.is_file() and path.is_relative_to(target) for path in told.values())


def test_copy_onto_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    result = CliRunner().invoke(app, ["examples", "--copy", str(tmp_path)])
    assert isinstance(result.exception, UserError)
    assert (tmp_path / "kept").read_text() == "kept"
