"""The routes of the API and what they take and answer, as tables: from the description that the API gives of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nereus.api.openapi import document

Json = Mapping[str, Any]

ABOUT = """\
What `GET /openapi.json` says, as tables. [The HTTP API](../api.md) explains it: pages of lists, asking twice, errors.
"""


def routes() -> str:
    """Every route with its parameters, body and answers; then the fields of each of those."""
    described: Json = json.loads(document())
    parts = [
        _route(method.upper(), path, route)
        for path, methods in described["paths"].items()
        for method, route in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in described["components"]["schemas"].items()]
    return "\n".join((ABOUT, *parts, "## Bodies and answers\n", *schemas))


def _route(method: str, path: str, route: Json) -> str:
    parts = [f"## {method} {path}\n", f"{route.get('description', route['summary'])}\n"]
    takes = [*_parameters(route), *_body(route)]
    if takes:
        parts.append(_table(("takes", "where", "type", "meaning"), takes))
    answers = [(code, _contents(answer), _line(answer["description"])) for code, answer in route["responses"].items()]
    parts.append(_table(("answer", "body", "meaning"), answers))
    return "\n".join(parts)


def _parameters(route: Json) -> Iterator[tuple[str, ...]]:
    for parameter in route.get("parameters", ()):
        where = parameter["in"] + (", required" if parameter["required"] else "")
        yield f"`{parameter['name']}`", where, _type(parameter["schema"]), _line(parameter.get("description", ""))


def _body(route: Json) -> Iterator[tuple[str, ...]]:
    body = route.get("requestBody")
    if body is not None:
        where = "body, required" if body.get("required") else "body"
        yield "JSON", where, _contents(body), ""


def _contents(described: Json) -> str:
    schemas = (content.get("schema", {}) for content in described.get("content", {}).values())
    return ", ".join(_type(schema) for schema in schemas) or "none"


def _schema(name: str, schema: Json) -> str:
    fields = [
        (f"`{field}`", _type(of), "yes" if field in schema.get("required", ()) else "no", _line(of.get("description", "")))
        for field, of in schema.get("properties", {}).items()
    ]
    about = [f"{_line(schema['description'])}\n"] if "description" in schema else []
    return "\n".join((f"### {name}\n", *about, _table(("field", "type", "always there", "meaning"), fields)))


def _type(schema: Json) -> str:
    """A schema in a few words, with a link where it has a name of its own."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join((first, "|---" * len(head) + "|", *others)) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
