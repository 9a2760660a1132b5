"""Pages that are made of files: the examples, whole, and the list of decision notes."""

from __future__ import annotations

from pathlib import Path

from nereus.cli.examples import about, shipped, shipped_folder

OF_EXAMPLES = """\
They come with the package: `nereus run quickstart`, or any other name below in place of a file, works in every folder, and
[`nereus examples --copy mine`](cli.md#nereus-examples) copies them to be edited.
"""

OF_DECISIONS = """\
Why the design is as it is: what was decided, what it costs, and what else was looked at.
"""


def examples() -> str:
    """The examples that are shipped, with the traces and model files beside them."""
    jobs = shipped()
    beside = sorted(path for path in shipped_folder().rglob("*") if path.is_file() and path not in jobs.values())
    parts = [f"## {name}\n\n{about(path)}\n\n{_quoted(path, 'yaml')}" for name, path in jobs.items()]
    return "\n".join(
        (OF_EXAMPLES, *parts, "## Files beside them\n", *(f"`{path.name}`:\n\n{_quoted(path, '')}" for path in beside))
    )


def _quoted(path: Path, language: str) -> str:
    return f"```{language}\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"


def decisions(folder: Path) -> str:
    """The decision notes of a folder of documents, in order."""
    notes = sorted((folder / "decisions").glob("*.md"))
    titles = [(path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "), path.name) for path in notes]
    return OF_DECISIONS + "\n" + "".join(f"- [{title}](decisions/{name})\n" for title, name in titles)
