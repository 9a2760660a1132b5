"""The routes of the API and what they take and answer, from the description that the API gives of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

from nereus.api.openapi import document
from nereus.cli.reference.tables import Schema, cell, table, words

ABOUT = """\
What `GET /openapi.json` says, as tables. [The HTTP API](../api.md) explains it: pages of lists, asking twice, errors.
"""


def routes() -> str:
    """Every route with its parameters, body and answers; then the fields of each of those."""
    described: Schema = json.loads(document())
    parts = [
        _route(method.upper(), path, route)
        for path, methods in described["paths"].items()
        for method, route in methods.items()
    ]
    bodies = [_body(name, schema) for name, schema in described["components"]["schemas"].items()]
    return "\n".join((ABOUT, *parts, "## Bodies and answers\n", *bodies))


def _route(method: str, path: str, route: Schema) -> str:
    parts = [f"## {method} {path}\n", f"{route.get('description', route['summary'])}\n"]
    takes = list(_takes(route))
    if takes:
        parts.append(table(("takes", "where", "type", "meaning"), takes))
    answers = [(code, _contents(answer), cell(answer["description"])) for code, answer in route["responses"].items()]
    parts.append(table(("answer", "body", "meaning"), answers))
    return "\n".join(parts)


def _takes(route: Schema) -> Iterator[tuple[str, ...]]:
    for parameter in route.get("parameters", ()):
        where = parameter["in"] + (", required" if parameter["required"] else "")
        yield f"`{parameter['name']}`", where, words(parameter["schema"]), cell(parameter.get("description"))
    body = route.get("requestBody")
    if body is not None:
        yield "JSON", "body, required" if body.get("required") else "body", _contents(body), ""


def _contents(described: Schema) -> str:
    schemas = (content.get("schema", {}) for content in described.get("content", {}).values())
    return ", ".join(words(schema) for schema in schemas) or "none"


def _body(name: str, schema: Schema) -> str:
    rows = [
        (f"`{field}`", words(of), "yes" if field in schema.get("required", ()) else "no", cell(of.get("description")))
        for field, of in schema.get("properties", {}).items()
    ]
    about = f"{cell(schema['description'])}\n\n" if "description" in schema else ""
    return f"### {name}\n\n{about}{table(('field', 'type', 'always there', 'meaning'), rows)}"
