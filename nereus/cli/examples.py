"""`nereus examples`: the job files that come with the package, and JOB arguments that name one of them.

    nereus run quickstart      a file of that name, if there is one, else the example that is shipped

They lie in `nereus/examples` of an installed package, and in `examples` of a checkout: the wheel packs that folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import typer

import nereus
from nereus.errors import UserError

KINDS = (".yaml", ".yml")
"""What an example may end in; traces and model files beside them are no jobs."""


def shipped_folder() -> Path:
    """Where the examples are: in the package, or beside it in a checkout."""
    package = Path(nereus.__file__).parent
    return next(folder for folder in (package / "examples", package.parent / "examples") if folder.is_dir())


def shipped() -> dict[str, Path]:
    """Name -> file of each example, by name."""
    found = [path for path in shipped_folder().rglob("*") if path.suffix in KINDS]
    return {path.stem: path for path in sorted(found, key=lambda path: path.stem)}


def file_or_example(job: Path) -> Path:
    """The file that a JOB argument means. A file wins; what is no file and looks like none must be a shipped example.

    Raises UserError that lists what is shipped.
    """
    looks_like_file = job.suffix or len(job.parts) != 1
    if looks_like_file or job.is_file():
        return job
    examples = shipped()
    if str(job) not in examples:
        names = ", ".join(examples)
        raise UserError(
            f"JOB: there is no file {str(job)!r}, and no example of that name; give a job file, or one of {names}"
        )
    return examples[str(job)]


def show_examples(copy: Path | None, *, as_json: bool) -> None:
    """List the examples, or copy their folder to where they can be edited. Raises UserError if `copy` exists."""
    examples = shipped() if copy is None else _copied(copy)
    if as_json:
        typer.echo(json.dumps({"examples": [{"name": name, "file": str(path)} for name, path in examples.items()]}))
        return
    for name, path in examples.items():
        typer.echo(f"{name:18} {path}\n    {about(path)}")


def about(path: Path) -> str:
    """The first sentence of the comment that an example begins with."""
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    sentence, _, _ = " ".join(comment).partition(". ")
    return sentence.rstrip(".") + "."


def _copied(target: Path) -> dict[str, Path]:
    folder = shipped_folder()
    try:
        shutil.copytree(folder, target)
    except FileExistsError:
        raise UserError(f"--copy: {str(target)!r} is there already; give a folder that is not") from None
    except OSError as error:
        raise UserError(f"--copy: {str(target)!r} cannot be written: {error}; give another folder") from None
    return {name: target / path.relative_to(folder) for name, path in shipped().items()}
