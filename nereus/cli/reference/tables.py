"""Tables in Markdown, JSON schemas in a few words, and the docstrings that stand below fields."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Schema = Mapping[str, Any]

BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}

NO_BOUND = 2**31
"""A bound from here on is that of the machine, not one that anybody comes to."""


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table, with a line of its own at the end."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join((first, "|---" * len(head) + "|", *others)) + "\n"


def cell(text: str | None) -> str:
    """A text as one cell of a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


def words(schema: Schema) -> str:
    """A JSON schema in a few words, with a link to the heading of its name where it has one."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for alternatives in ("anyOf", "oneOf"):
        if alternatives in schema:
            return " or ".join(words(choice) for choice in schema[alternatives])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {words(schema['items'])}" if "items" in schema else "list"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map to {words(schema['additionalProperties'])}"
    bounds = [f"{said} {schema[bound]:g}" for bound, said in BOUNDS.items() if abs(schema.get(bound, NO_BOUND)) < NO_BOUND]
    return " ".join((str(schema.get("type", "any")), ", ".join(bounds))).strip()


def docstrings(declared: type) -> Mapping[str, str]:
    """Name of each member of a class -> the docstring below it, in one line."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(declared)).body if isinstance(node, ast.ClassDef))
    found = {}
    for member, text in pairwise(body):
        match member, text:
            case (ast.Assign(targets=[name]) | ast.AnnAssign(target=name), ast.Expr(value=ast.Constant(value=str(said)))):
                found[ast.unparse(name)] = " ".join(said.split())
    return found
