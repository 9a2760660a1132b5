"""`python -m nereus.cli.reference docs`: the pages of the reference that the code itself tells, written into that folder.

    typer's commands -> reference/commands.md        Code -> reference/verdicts.md        examples/ -> examples.md
    openapi.json     -> reference/routes.md          docs/decisions/ -> decisions.md

They are committed, and a test holds that they are what this writes.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from nereus.cli.app import app
from nereus.cli.examples import about, shipped, shipped_folder
from nereus.cli.reference_routes import routes
from nereus.policy.admission import Code

MADE = "<!-- Made by `make reference`: change what it is read from instead. -->\n"


def document(title: str, *parts: str) -> str:
    """A page: its title, the note that it is made, and its parts."""
    return "\n".join((f"# {title}\n", MADE, *parts))


def commands(folder: Path) -> str:
    """Every command, its arguments and options, as `--help` has them."""
    about_it = "Every command as its `--help` has it. [The command line](../cli.md) explains them, with what they print.\n"
    group = typer.main.get_command(app)
    parts = [_command(name, command) for name, command in _below("nereus", group)]
    return document("Commands", about_it, *parts)


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for child, found in getattr(command, "commands", {}).items():
        yield from _below(f"{name} {child}", found)


def _command(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    usage = " ".join(
        (name, *(param.metavar or param.name.upper() for param in arguments), *(["[OPTIONS]"] if options else []))
    )
    parts = [f"## {name}\n", f"{command.help}\n", f"```\n{usage}\n```\n"]
    rows = [f"| `{param.metavar or param.name.upper()}` | required | {_cell(param.help)} |" for param in arguments]
    rows += [f"| {_names(param)} | {_default(param)} | {_cell(param.help)} |" for param in options]
    if rows:
        parts.append("\n".join(("| argument or option | default | meaning |", "|---|---|---|", *rows)) + "\n")
    return "\n".join(parts)


def _names(param: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))


def _default(param: Any) -> str:
    if isinstance(param.show_default, str):
        return param.show_default
    if param.required:
        return "required"
    if param.default is None or param.default is False:
        return "off" if param.is_flag else "none"
    return f"`{param.default}`"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def verdicts(folder: Path) -> str:
    """Every verdict, with the meaning that its docstring gives it."""
    meanings = member_docstrings(Code)
    rows = [f"| `{code}` | {'yes' if code.startswith('admitted') else 'no'} | {meanings[code.name]} |" for code in Code]
    table = "\n".join(("| code | carried out | meaning |", "|---|---|---|", *rows)) + "\n"
    about_it = (
        "What is decided on a candidate plan. [How the plan adapts](../adaptation.md#the-verdicts) says how they are "
        "reached, and how to read a decision; the metric `nereus_decisions_total` counts them, by `code`.\n"
    )
    return document("Verdict codes", about_it, table)


def member_docstrings(enum: type) -> Mapping[str, str]:
    """Name of each member of an enumeration -> the docstring below it, in one line."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(enum)).body if isinstance(node, ast.ClassDef))
    found = {}
    for member, text in pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(member.targets[0])] = " ".join(str(text.value.value).split())
    return found


def examples(folder: Path) -> str:
    """The examples that are shipped, whole, with the traces and model files beside them."""
    jobs = shipped()
    beside = sorted(path for path in shipped_folder().rglob("*") if path.is_file() and path not in jobs.values())
    about_it = (
        "They come with the package: `nereus run quickstart`, or any other name below in place of a file, works in every "
        "folder, and [`nereus examples --copy mine`](cli.md#nereus-examples) copies them to be edited.\n"
    )
    parts = [f"## {name}\n\n{about(path)}\n\n{_quoted(path, 'yaml')}" for name, path in jobs.items()]
    parts += ["## Files beside them\n", *(f"`{path.name}`:\n\n{_quoted(path, '')}" for path in beside)]
    return document("Examples", about_it, *parts)


def _quoted(path: Path, language: str) -> str:
    return f"```{language}\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"


def decisions(folder: Path) -> str:
    """The decision notes of a folder of documents, in order."""
    notes = sorted((folder / "decisions").glob("*.md"))
    titles = {path: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in notes}
    about_it = "Why the design is as it is: what was decided, what it costs, and what else was looked at.\n"
    return document(
        "Decisions", about_it, "\n".join(f"- [{title}](decisions/{path.name})" for path, title in titles.items()) + "\n"
    )


PAGES: Mapping[str, Callable[[Path], str]] = {
    "decisions.md": decisions,
    "examples.md": examples,
    "reference/commands.md": commands,
    "reference/routes.md": lambda folder: document("Routes of the API", routes()),
    "reference/verdicts.md": verdicts,
}
"""Page, from the folder of documents -> what writes it, from that folder."""


def main(folder: Path) -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(page(folder), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
