"""The API actor: serves the HTTP API from a process of its own on the head node, so that no reader slows the head down.

browser, CLI, Prometheus -> uvicorn (a thread) -> projection <- feed <- head actor
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nereus.api.access import Access
from nereus.api.address import DEFAULT_PORT, LOOPBACK
from nereus.api.app import create_app
from nereus.api.jobs import Jobs
from nereus.api.serve import Server
from nereus.control.effects import News
from nereus.runtime.controller import Command, Receipt
from nereus.runtime.standing import Standing

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


class ControllerJobs:
    """The running jobs of the controller, as it tells them; each has a head of its own."""

    def __init__(self, controller: str) -> None:
        """`controller` is the name of its actor."""
        self._controller = controller
        self._standing: Standing | None = None

    def names(self) -> tuple[str, ...]:
        standing: Standing = _answer(_named(self._controller).standing.options(concurrency_group="ask").remote())
        self._standing = standing
        return tuple(standing.heads)

    def port(self, name: str) -> HeadPort:
        if self._standing is None:
            raise KeyError(name)
        return HeadPort(_named(self._standing.heads[name]))

    @property
    def standing(self) -> Standing | None:
        return self._standing


def _named(actor: str) -> Any:
    """The handle of a named actor. Raises ConnectionError while there is none."""
    import ray
    from ray.exceptions import GetTimeoutError

    try:
        return ray.get_actor(actor)
    except (ValueError, GetTimeoutError) as error:
        raise ConnectionError(f"there is no actor {actor!r}, or Ray does not say") from error


class Api:
    """The API of one job, or of all jobs of a controller."""

    def __init__(self, jobs: Jobs, token_file: Path | None = None) -> None:
        """`token_file` is on this node; read when it is served."""
        self._jobs, self._token_file = jobs, token_file
        self._server: Server | None = None
        self._where: tuple[str, int] = ("", 0)

    def start(self, port: int = DEFAULT_PORT, host: str = LOOPBACK) -> tuple[str, int]:
        """Serve, unless it serves already; returns where: on `port`, or on loopback the next free one.

        Raises OSError when none is free, UserError for tokens that cannot be read, or a host that needs some.
        """
        if self._server is None:
            server = Server(create_app(self._jobs, Access.read(self._token_file)))
            self._where = server.start(port, host)
            self._server = server
        return self._where

    def stop(self) -> None:
        """End the server; the actor may live on."""
        if self._server is not None:
            self._server.stop()
