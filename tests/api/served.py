"""A controller that is fed by hand, an API that is really served, and what a client sees of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from nereus.api.access import OPEN, Access
from nereus.api.app import create_app
from nereus.api.serve import Server
from nereus.control.effects import News
from nereus.runtime.controller import Command, ControllerPort, Receipt
from nereus.runtime.standing import Standing

OPENER = build_opener(ProxyHandler({}))


class FakeController:
    """A ControllerPort over a list."""

    def __init__(self, news: Iterable[News] = ()) -> None:
        self.news = list(news)
        self.commands: list[Any] = []
        self.on_submit: Callable[[Any], Iterable[News]] = lambda command: ()
        """What a command leads to."""
        self.is_gone = False
        self.may_answer = Event()
        """Submitting waits for it."""
        self.may_answer.set()

    def feed(self, after: int) -> Sequence[News]:
        if self.is_gone:
            raise ConnectionError("it restarts")
        return tuple(self.news[after:])

    def submit(self, command: Command) -> Receipt:
        if self.is_gone:
            raise ConnectionError("it restarts")
        self.commands.append(command)
        assert self.may_answer.wait(10)
        self.news.extend(self.on_submit(command))
        return Receipt(id=command.id)


class FakeJobs(dict[str, FakeController]):
    """Jobs over a dictionary, whose controller may be gone."""

    is_gone = False
    standing: Standing | None = None

    def names(self) -> tuple[str, ...]:
        if self.is_gone:
            raise ConnectionError("it restarts")
        return tuple(self)

    def port(self, name: str) -> ControllerPort:
        return self[name]


JOB = "tiny"
"""The name of the only job of an API, where there is one."""


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    headers: Message
    text: str
    body: Any = field(default=None)


@dataclass(frozen=True)
class Api:
    """A served API, and the controller behind it."""

    url: str
    controller: FakeController
    """Of the first job."""
    jobs: FakeJobs

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return ask(self.url + path, headers=headers or {})

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return ask(self.url + path, data=data, headers={"Content-Type": "application/json", **(headers or {})})

    def tell(self, *news: News) -> None:
        """Have it known to the API."""
        self.controller.news.extend(news)
        self.wait_until_told()

    def wait_until_told(self) -> None:
        wanted = [f'nereus_news_total{{nereus_job="{n}"}} {float(len(c.news))}' for n, c in self.jobs.items()]
        wait_for(lambda: all(line in self.get("/metrics").text for line in wanted))


def ask(url: str, **parts: Any) -> Reply:
    try:
        with OPENER.open(Request(url, **parts), timeout=10) as response:
            return _reply(response.status, response.headers, response.read().decode())
    except HTTPError as error:
        with error:
            return _reply(error.code, error.headers, error.read().decode())


def _reply(status: int, headers: Message, text: str) -> Reply:
    return Reply(status, headers, text, json.loads(text) if "json" in headers.get_content_type() else None)


def wait_for(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


@contextmanager
def served(controller: FakeController) -> Iterator[Api]:
    """Serve one job on a free port; the API has folded all news of the controller."""
    with all_served(FakeJobs({JOB: controller})) as api:
        if not controller.is_gone:
            api.wait_until_told()
        yield api


@contextmanager
def all_served(jobs: FakeJobs, access: Access = OPEN) -> Iterator[Api]:
    """Serve several jobs on a free port."""
    server = Server(create_app(jobs, access, poll_s=0.01))
    host, port = server.start(0)
    try:
        yield Api(f"http://{host}:{port}", next(iter(jobs.values()), FakeController()), jobs)
    finally:
        server.stop()
