"""The documents keep up with the code: every field, option, error, key and word is in its document, and links resolve.

Neither Ray nor torch is needed: what is compared is declared in rooms that are free of both.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import nereus.spec
from nereus import errors
from nereus.cli.reference.commands import every_command
from nereus.control.allowed import ALLOWED
from nereus.control.announced import JobDescribed, Replanned
from nereus.control.checkpoint import Restored, Saved
from nereus.control.effects import (
    Decision,
    DevicesChanged,
    News,
    Publish,
    Started,
    TransitionRecord,
)
from nereus.control.events import StepLost
from nereus.control.report import StepReport
from nereus.emu.plan import Plan, StagePlan
from nereus.errors import NereusError
from nereus.layout.layout import Layout
from nereus.policy.admission import Code
from nereus.policy.horizon import EMA_WEIGHT
from nereus.runtime.event_log import event_dict
from nereus.runtime.summary import SampleCounts, Summary, plan_dict, summarize
from nereus.spec.declared import Declared
from nereus.spec.policy import CheckpointRule
from tests.control.harness import Core, report
from tests.runtime.loop import adaptive_config, scripted_config

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

WORDS = """
device, endpoint, model-stage, layout, StagePlan, Plan, EMU, unit, logical state, primitive, local DAG, transition DAG,
epoch, boundary, release, commit, lane, slot, T_sub, digest, counted box, pace, lateness, weight sync, canonical tensor,
move, ledger, trigger, signal, reference value, crossing, horizon, cycle, snapshot, proposal, admission, verdict, payback,
urgent, opportunistic, L_step, L_tran, headroom, event, effect, phase, core, driver, head, journal, replay, news, projection,
port, pool, availability trace, notice, family, movement, fused, stream, bucket, message, wave, workflow, holder,
overlap graph, window, active, truth, response surface, condition, drift, straggler, checkpoint, share, bare
"""
"""What the glossary must define, however it is sorted."""

ROW = re.compile(r"^\| (?:`([^`]+)`|\*\*([^*]+)\*\*) \|", re.MULTILINE)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FOREIGN = {f"/{name}/" for name in (ROOT.parts[1], Path.home().parts[1], "home", "Users")}
"""Where this clone and its user live, and where people usually do: no document names a place on one machine."""


def text(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def first_cells(document: str) -> list[str]:
    """The code or bold text that begins each row of the tables of a document."""
    return [code or bold for code, bold in ROW.findall(document)]


def document_of(model: type[Declared]) -> str:
    """The document that has its fields."""
    return "outline.md" if model.__module__ in ("nereus.spec.outline", "nereus.spec.pins") else "job-file.md"


def declared() -> list[type[Declared]]:
    """Every model that a job file or an outline is made of."""
    for module in pkgutil.iter_modules(nereus.spec.__path__, "nereus.spec."):
        importlib.import_module(module.name)
    return sorted((c for c in _subclasses(Declared) if c.__module__.startswith("nereus.spec.")), key=lambda c: c.__name__)


def _subclasses(base: type) -> list[type]:
    return [found for child in base.__subclasses__() for found in (child, *_subclasses(child))]


@pytest.mark.parametrize("model", declared(), ids=lambda model: model.__name__)
def test_document_has_a_row_for_every_declared_field(model: type[Declared]) -> None:
    rows = first_cells(text(document_of(model)))
    assert [name for name in model.model_fields if name not in rows] == []


@pytest.mark.parametrize("document", ["job-file.md", "outline.md"])
def test_document_has_as_many_rows_as_there_are_fields(document: str) -> None:
    known = sorted(name for model in declared() if document_of(model) == document for name in model.model_fields)
    assert sorted(first_cells(text(document))) == known


def commands() -> dict[str, list[str]]:
    """Each command and its options, as typer knows them; a group comes before what is below it."""
    return {
        name: [option for param in command.params for option in param.opts if option.startswith("-")]
        for name, command in every_command()
    }


def section(document: str, heading: str) -> str:
    """What stands below a heading of the second level, up to the next one; empty without it."""
    _, _, rest = document.partition(f"\n## {heading}\n")
    return rest.partition("\n## ")[0]


@pytest.mark.parametrize(
    ("command", "options"), commands().items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_command_line_document_has_the_options_of(command: str, options: list[str]) -> None:
    assert command != "nereus run" or "--availability" in options
    rows = {row for row in first_cells(section(text("cli.md"), command)) if row.startswith("--")}
    assert rows - {"--help"} == set(options)


def test_command_line_document_has_no_command_that_is_not_there() -> None:
    headings = [heading for heading in HEADING.findall(text("cli.md")) if heading.startswith("nereus")]
    assert sorted(headings) == sorted(commands())


def test_adaptation_document_has_a_row_for_every_verdict() -> None:
    rows = first_cells(section(text("adaptation.md"), "The verdicts"))
    assert sorted(rows) == sorted(str(code) for code in Code)


def test_adaptation_document_names_every_phase_and_the_weight_of_the_average() -> None:
    document = text("adaptation.md")
    assert [phase.__name__ for phase in ALLOWED if f"`{phase.__name__}`" not in document] == []
    assert f"weight {EMA_WEIGHT}" in document


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


def news() -> Iterator[News]:
    """What three short runs tell: one by script, one that decides and admits nothing, one that goes back to a checkpoint."""
    scripted, adaptive = Core(scripted_config()).start(range(6)), Core(adaptive_config(gamma=0.0)).start(range(4))
    saving = Core(replace(adaptive_config(), checkpoint=CheckpointRule(every_steps=1))).start(range(4))
    for core in (scripted, adaptive, saving):
        for tokens in (6.0, 12.0):
            yield replace(report(core.state, core.state.step + 1, tokens), peak_bytes={"d0.0": 1})
            core.boundary(tokens)
            core.settle()
        if core is saving:
            for endpoint in sorted(core.state.endpoint_of.values()):
                core.post(StepLost(endpoint=endpoint, during="a step"))
            core.settle()
        yield from (effect.news for effect in core.effects if isinstance(effect, Publish))


def events(kind: type[News]) -> list[dict[str, Any]]:
    """All that was told of one kind, as events.jsonl has it."""
    found = [event_dict(event) for event in news() if isinstance(event, kind)]
    assert found, kind
    return found


def test_summary_document_has_every_key_of_the_summary() -> None:
    told = [
        event for event in news() if isinstance(event, Started | StepReport | Decision | TransitionRecord | Saved | Restored)
    ]
    told.sort(key=lambda event: not isinstance(event, Started))
    summary = summarize(told, SampleCounts(seen=1, repeated=0, skipped=0), lambda plan, step: 0)
    told_of = (*summary.transitions, *summary.rejected, *summary.saved, *summary.restored)
    entries = [key for entry in told_of for key in entry]
    assert summary.transitions
    assert summary.rejected
    assert summary.restored
    keys = {*(field.name for field in fields(Summary)), *entries}
    assert sorted(key for key in keys if key not in first_cells(text("summary.md"))) == []


@pytest.mark.parametrize(
    "kind", [JobDescribed, Started, StepReport, DevicesChanged, Replanned, Decision, TransitionRecord, Saved, Restored]
)
def test_summary_document_has_every_key_of_an_event(kind: type[News]) -> None:
    document = section(text("summary.md"), "events.jsonl")
    (name,) = {event["event"] for event in events(kind)}
    assert f"`{name}`" in document
    assert sorted(key for event in events(kind) for key in event if f"`{key}`" not in document) == []


def test_summary_document_has_every_key_of_a_plan() -> None:
    stage = StagePlan("actor_training", Layout(), 1, (0,))
    keys = plan_dict(Plan(0, {stage.stage: stage}))[stage.stage]
    assert [key for key in keys if f"`{key}`" not in text("summary.md")] == []


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
