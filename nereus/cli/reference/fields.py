"""Every field of a job file and of an outline: type, bounds, default and docstring, as its declaration has them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import BaseModel

from nereus.cli.reference.tables import Schema, cell, docstrings, table, words
from nereus.spec.declared import Declared
from nereus.spec.job import Job
from nereus.spec.outline import Outline

ABOUT = """\
Every field, as it is declared. [The job file](../job-file.md) and [outlines](../outline.md) explain them, with examples, and
say which go together. A field that is not here is refused, with what is allowed in its place.
"""


def fields() -> str:
    """Both kinds of file, each from its root down."""
    return "\n".join((ABOUT, "## Job file\n", *_models(Job), "## Outline of a job on accelerators\n", *_models(Outline)))


def _models(root: type[Declared]) -> Iterator[str]:
    schema = root.model_json_schema()
    yield _model(root, schema)
    for name, below in schema["$defs"].items():
        yield _choice(name, below) if "enum" in below else _model(_declared(name), below)


def _declared(name: str) -> type[Declared]:
    """The model of that name; there is one."""
    (found,) = (model for model in Declared.__subclasses__() if model.__name__ == name)
    return found


def _choice(name: str, schema: Schema) -> str:
    about = f"{cell(schema['description'])} " if "description" in schema else ""
    return f"### {name}\n\n{about}One of {words(schema)}.\n"


def _model(model: type[BaseModel], schema: Schema) -> str:
    meanings = docstrings(model)
    rows = [
        (f"`{name}`", words(field), _default(name, field, schema), cell(meanings.get(name)))
        for name, field in schema["properties"].items()
    ]
    return f"### {model.__name__}\n\n{cell(schema['description'])}\n\n{table(('field', 'type', 'default', 'meaning'), rows)}"


def _default(name: str, field: Schema, schema: Schema) -> str:
    if name in schema.get("required", ()):
        return "required"
    if "default" not in field:
        return "see there" if "$ref" in field else "none"
    return f"`{json.dumps(field['default'])}`"
