"""Errors of the API by RFC 9457: one JSON form, media type application/problem+json, and a stable `type` each.

urn:nereus:problem:<kind>        the kinds are the members of Kind
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"


class Kind(Enum):
    """Status and title of each kind of problem; its type is its name in kebab case."""

    UNAUTHENTICATED = (401, "A token is needed")
    FORBIDDEN = (403, "This token may only look")
    NOT_FOUND = (404, "There is no such thing")
    METHOD_NOT_ALLOWED = (405, "This method is not offered here")
    IN_FLIGHT = (409, "A request with this key is still being handled")
    INVALID_REQUEST = (422, "The request is not valid")
    KEY_REUSED = (422, "This key was used for another request")
    BAD_REQUEST = (400, "The request cannot be read")
    JOB_NEEDED = (400, "There are several jobs")
    INTERNAL_ERROR = (500, "A bug in the API")
    NOT_READY = (503, "The job is not ready")
    CONTROLLER_UNAVAILABLE = (503, "The controller does not answer")

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def title(self) -> str:
        return self.value[1]

    @property
    def type(self) -> str:
        return f"urn:nereus:problem:{self.name.lower().replace('_', '-')}"


class ProblemError(Exception):
    """Ends a request with a problem."""

    def __init__(self, kind: Kind, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.more = kind, detail, more


def problem(kind: Kind, detail: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    """The answer to a request that went wrong."""
    body = {"type": kind.type, "title": kind.title, "status": kind.status, "detail": detail, **more}
    again = {"Retry-After": "1"} if kind.status == 503 else {}
    return JSONResponse(body, kind.status, {**again, **(headers or {})}, MEDIA_TYPE)


def answer_errors_with_problems(app: FastAPI) -> None:
    """Every error that leaves a route becomes a problem, those of the framework included."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)


async def _on_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return problem(error.kind, error.detail, **error.more)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [{"field": ".".join(str(part) for part in e["loc"]), "message": e["msg"]} for e in error.errors()]
    detail = "; ".join(f"{e['field']}: {e['message']}" for e in errors)
    return problem(Kind.INVALID_REQUEST, detail, errors=errors)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    found = {404: Kind.NOT_FOUND, 405: Kind.METHOD_NOT_ALLOWED}.get(error.status_code, Kind.BAD_REQUEST)
    detail = f"{request.method} {request.url.path}: {found.title.lower()}; GET /openapi.json lists what there is"
    return problem(found, detail, dict(error.headers or {}))


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    return problem(Kind.INTERNAL_ERROR, f"{type(error).__name__}: {error}; please report it")
