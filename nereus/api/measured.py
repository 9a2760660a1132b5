"""Counts the requests of the API: outermost, so that refused ones and errors are counted as well."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nereus.metrics.requests import UNMATCHED, RequestTallies

FAILED = 500
"""The status of a request that ended without an answer."""


def templates(schema: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Method and path template of every route that is described, and of the description."""
    described = [(method.upper(), path) for path, operations in schema["paths"].items() for method in operations]
    return (*described, ("GET", "/openapi.json"))


class Measured:
    """Takes the time of each request, and the route that took it."""

    def __init__(self, app: ASGIApp, tallies: RequestTallies) -> None:
        self._app, self._tallies = app, tallies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = FAILED, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", UNMATCHED)
            self._tallies.count(scope["method"], route, status, time.perf_counter() - began_s)
