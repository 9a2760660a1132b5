"""The API actor: serves the HTTP API from a process of its own on the head node, so that no reader slows the head down.

browser, CLI, Prometheus -> uvicorn (a thread) -> projection <- feed <- head actor
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nereus.api.address import DEFAULT_PORT
from nereus.api.app import create_app
from nereus.api.jobs import OneJob
from nereus.api.serve import Server
from nereus.control.effects import News
from nereus.runtime.controller import Command, Receipt

ANSWER_TIMEOUT_S = 5.0
"""Seconds to wait for the head: it answers in milliseconds, and one that restarts is asked again."""


class HeadPort:
    """A ControllerPort over the head actor's handle; its calls run in the head's `watch` lane."""

    def __init__(self, head: Any) -> None:
        self._head = head

    def feed(self, after: int) -> Sequence[News]:
        news: Sequence[News] = _answer(self._head.feed.options(concurrency_group="watch").remote(after))
        return news

    def submit(self, command: Command) -> Receipt:
        _answer(self._head.submit.options(concurrency_group="watch").remote(command))
        return Receipt(id=command.id)


def _answer(reference: Any) -> Any:
    """What a call came to. Raises ConnectionError when the head is gone, restarting or slow."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    try:
        return ray.get(reference, timeout=ANSWER_TIMEOUT_S)
    except (RayActorError, GetTimeoutError) as error:
        raise ConnectionError(f"the head actor: {type(error).__name__}") from error


class Api:
    """One job's API."""

    def __init__(self, name: str, head: Any) -> None:
        """`name` is the job's."""
        self._server = Server(create_app(OneJob(name, HeadPort(head))))

    def start(self, port: int = DEFAULT_PORT) -> tuple[str, int]:
        """Serve on loopback, on `port` or the next free one; returns where. Raises OSError when none is free."""
        return self._server.start(port)

    def stop(self) -> None:
        """End the server; the actor may live on."""
        self._server.stop()
