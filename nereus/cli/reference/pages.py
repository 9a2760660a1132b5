"""Which pages are made from what; they are committed, and a test holds that they are what this writes.

typer's commands -> reference/commands.md        Job, Outline -> reference/fields.md        examples/       -> examples.md
openapi.json     -> reference/routes.md          Code         -> reference/verdicts.md      docs/decisions/ -> decisions.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nereus.cli.reference.collected import decisions, examples
from nereus.cli.reference.commands import commands
from nereus.cli.reference.fields import fields
from nereus.cli.reference.routes import routes
from nereus.cli.reference.verdicts import verdicts

MADE = "<!-- Made by `make reference`: change what it is read from instead. -->"

PAGES: Mapping[str, tuple[str, Callable[[Path], str]]] = {
    "decisions.md": ("Decisions", decisions),
    "examples.md": ("Examples", lambda folder: examples()),
    "reference/commands.md": ("Commands", lambda folder: commands()),
    "reference/fields.md": ("Fields", lambda folder: fields()),
    "reference/routes.md": ("Routes of the API", lambda folder: routes()),
    "reference/verdicts.md": ("Verdict codes", lambda folder: verdicts()),
}
"""Page, from the folder of documents -> its title, and what tells it, from that folder."""


def page(name: str, folder: Path) -> str:
    """A page as it is committed."""
    title, tell = PAGES[name]
    return f"# {title}\n\n{MADE}\n\n{tell(folder)}"


def write(folder: Path) -> None:
    """Write all pages."""
    for name in PAGES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(page(name, folder), encoding="utf-8")
