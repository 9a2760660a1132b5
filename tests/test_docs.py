"""The documents keep up with the code: every field, option, error, key and word is in its document, and links resolve.

Neither Ray nor torch is needed: what is compared is declared in rooms that are free of both.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer

import nereus.spec
from nereus import errors
from nereus.cli.app import app
from nereus.cli.display import event_dict
from nereus.emu.plan import Plan, StagePlan
from nereus.errors import NereusError
from nereus.layout.layout import Layout
from nereus.runtime.boundary import StepReport
from nereus.runtime.carry_out import Outcome
from nereus.runtime.events import Started, TransitionReport
from nereus.runtime.summary import Summary, plan_dict
from nereus.spec.declared import Declared

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

WORDS = """
device, endpoint, model-stage, layout, StagePlan, Plan, EMU, unit, logical state, primitive, local DAG, transition DAG,
epoch, boundary, release, commit, lane, slot, T_sub, digest, counted box, pace, lateness, weight sync, canonical tensor,
move, ledger
"""
"""What the glossary must define, however it is sorted."""

ROW = re.compile(r"^\| (?:`([^`]+)`|\*\*([^*]+)\*\*) \|", re.MULTILINE)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FOREIGN = ("/work/", "/root/", "/home/")


def text(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def first_cells(document: str) -> list[str]:
    """The code or bold text that begins each row of the tables of a document."""
    return [code or bold for code, bold in ROW.findall(document)]


def declared() -> list[type[Declared]]:
    """Every model that a job file is made of."""
    for module in pkgutil.iter_modules(nereus.spec.__path__, "nereus.spec."):
        importlib.import_module(module.name)
    return sorted((c for c in _subclasses(Declared) if c.__module__.startswith("nereus.spec.")), key=lambda c: c.__name__)


def _subclasses(base: type) -> list[type]:
    return [found for child in base.__subclasses__() for found in (child, *_subclasses(child))]


@pytest.mark.parametrize("model", declared(), ids=lambda model: model.__name__)
def test_job_file_document_has_a_row_for_every_field(model: type[Declared]) -> None:
    rows = first_cells(text("job-file.md"))
    assert [name for name in model.model_fields if name not in rows] == []


def test_job_file_document_has_as_many_rows_as_there_are_fields() -> None:
    known = sorted(name for model in declared() for name in model.model_fields)
    assert sorted(first_cells(text("job-file.md"))) == known


def test_command_line_document_has_every_command_and_option() -> None:
    rows, document = first_cells(text("cli.md")), text("cli.md")
    group = typer.main.get_command(app)
    commands = getattr(group, "commands")  # noqa: B009 - a group of typer's own click
    params = [param for command in (group, *commands.values()) for param in command.params]
    options = [option for param in params for option in param.opts if option.startswith("-")]
    assert "--steps" in options
    assert [option for option in options if option not in rows] == []
    assert [name for name in commands if f"## nereus {name}\n" not in document] == []
    assert sorted({row for row in rows if row.startswith("--")} - {"--help"}) == sorted(options)


def test_errors_document_has_a_row_for_every_error() -> None:
    known = [c.__name__ for c in (NereusError, *_subclasses(NereusError)) if c.__module__ == errors.__name__]
    assert len(known) > 10
    assert sorted(first_cells(text("errors.md"))) == sorted(known)


@pytest.mark.parametrize("word", [word.strip() for word in WORDS.split(",")])
def test_glossary_defines(word: str) -> None:
    assert word in first_cells(text("glossary.md"))


def test_glossary_defines_no_word_twice() -> None:
    words = [word.lower() for word in first_cells(text("glossary.md")) if word != "Plan"]
    assert len(set(words)) == len(words)


STAGE = StagePlan("actor_training", Layout(), 1, (0,))
PLAN = Plan(0, {STAGE.stage: STAGE})
OUTCOME = Outcome(**{field.name: 0 for field in fields(Outcome)})
TRANSITION = TransitionReport(step=1, epoch=1, primitives={}, joined=(), left=(), plan=PLAN, outcome=OUTCOME)


def test_summary_document_has_every_key_of_the_summary() -> None:
    transition = {*event_dict(TRANSITION), *(field.name for field in fields(Outcome))} - {"event", "plan", "outcome"}
    keys = [*(field.name for field in fields(Summary)), *transition]
    assert [key for key in keys if key not in first_cells(text("summary.md"))] == []


def test_summary_document_has_every_key_of_an_event_and_of_a_plan() -> None:
    document = text("summary.md")
    steps = [field.name for field in fields(StepReport)]
    keys = [*steps, *event_dict(TRANSITION), *event_dict(Started(plan=PLAN)), *plan_dict(PLAN)[STAGE.stage]]
    assert [key for key in keys if f"`{key}`" not in document] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_of_a_document_resolve(path: Path) -> None:
    broken = []
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = HEADING.findall(CODE.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_names_no_path_of_the_machine_that_it_was_written_on(path: Path) -> None:
    assert [place for place in FOREIGN if place in path.read_text(encoding="utf-8")] == []


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = [int(path.name[:3]) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_license_is_the_apache_license_whole() -> None:
    license_text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in license_text
    assert "END OF TERMS AND CONDITIONS" in license_text
