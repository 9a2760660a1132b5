"""The API described: openapi.json with its problems as they really come, and the same on a page that loads nothing else.

FastAPI describes errors as its own JSON; here every answer from 400 on is a Problem.
"""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from nereus.api.access import OPEN_PATHS, READING
from nereus.api.problems import MEDIA_TYPE, Kind
from nereus.api.schemas import Problem

REF = "#/components/schemas/{model}"
REPLACED = ("HTTPValidationError", "ValidationError")
"""Schemas of FastAPI's own errors, which are never given."""


TOKEN = {"type": "http", "scheme": "bearer", "description": "Of the API's token file, where the server has one."}


def describe(app: FastAPI) -> None:
    """Have `app.openapi()` describe errors as problems, and which routes need a token."""

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            app.openapi_schema = _with_problems(_with_tokens(schema))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _with_tokens(schema: dict[str, Any]) -> dict[str, Any]:
    schema["components"]["securitySchemes"] = {"token": TOKEN}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if path not in OPEN_PATHS:
                operation["security"] = [{"token": []}]
                operation["responses"]["401"] = {}
                if method.upper() not in READING:
                    operation["responses"]["403"] = {}
    return schema


def _with_problems(schema: dict[str, Any]) -> dict[str, Any]:
    models = schema["components"]["schemas"]
    for name in REPLACED:
        models.pop(name, None)
    own = Problem.model_json_schema(ref_template=REF)
    models.update(own.pop("$defs"))
    models["Problem"] = own
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"] = dict(sorted(operation["responses"].items()))
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    response["description"] = _titles(int(status))
                    response["content"] = {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}}
    models_sorted = dict(sorted(models.items()))
    schema["components"]["schemas"] = models_sorted
    return schema


def _titles(status: int) -> str:
    return "; or: ".join(f"{kind.title} (`{kind.type}`)" for kind in Kind if kind.status == status)


def reference_page(schema: dict[str, Any]) -> str:
    """All operations and schemas as one HTML page."""
    operations = "".join(
        f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
        f"{_parameters(operation)}{_responses(operation)}"
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    )
    models = "".join(_model(name, model) for name, model in schema["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Nereus API</title>'
        "<style>body{font-family:sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}</style></head><body>"
        f"<h1>Nereus {escape(schema['info']['version'])}</h1><p>{escape(schema['info']['summary'])} "
        '<a href="/openapi.json">openapi.json</a></p>'
        f"{operations}<h1>Schemas</h1>{models}</body></html>"
    )


def _parameters(operation: dict[str, Any]) -> str:
    rows = [(f"{p['in']} {p['name']}", p.get("description", "")) for p in operation.get("parameters", ())]
    if "requestBody" in operation:
        rows.append(("body", _kind(operation["requestBody"]["content"]["application/json"]["schema"])))
    return _table(("takes", ""), rows) if rows else ""


def _responses(operation: dict[str, Any]) -> str:
    rows = []
    for status, response in operation["responses"].items():
        media, content = next(iter(response.get("content", {"": {}}).items()))
        rows.append((status, f"{response['description']}: {_kind(content.get('schema', {}))} {media}"))
    return _table(("gives", ""), rows)


def _model(name: str, model: dict[str, Any]) -> str:
    rows = [(field, f"{_kind(spec)}. {spec.get('description', '')}".strip()) for field, spec in model["properties"].items()]
    return f"<h2>{escape(name)}</h2><p>{escape(model.get('description', ''))}</p>{_table(('field', ''), rows)}"


def _kind(spec: dict[str, Any]) -> str:
    """A type in words."""
    if "$ref" in spec:
        return str(spec["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in spec:
        return " or ".join(_kind(part) for part in spec["anyOf"])
    if "enum" in spec or "const" in spec:
        return " or ".join(str(value) for value in spec.get("enum", [spec.get("const")]))
    if spec.get("type") == "array":
        return f"list of {_kind(spec['items'])}"
    if isinstance(spec.get("additionalProperties"), dict):
        return f"map to {_kind(spec['additionalProperties'])}"
    return str(spec.get("type", ""))


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td><code>{escape(a)}</code></td><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table><tr><th>{head[0]}</th><th>{head[1]}</th></tr>{body}</table>"
