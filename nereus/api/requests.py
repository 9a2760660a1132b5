"""What operators asked for through this API, and the keys under which they may ask again.

    POST with a key: new -> submitted; the same body again -> the same answer; another body -> 422; still in flight -> 409

What came of a request is found in the projection, by its id.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from nereus.api.feed import Feed
from nereus.api.problems import Kind, ProblemError
from nereus.api.schemas import CommandIn, CommandOut, DecisionOut, ReplanIn, ReplanOut
from nereus.control.events import Verb
from nereus.runtime.controller import Command, ControllerPort, ReplanCommand, VerbCommand
from nereus.runtime.projection import Projection

KEPT = 1000
"""Requests and keys that are remembered, the latest ones: enough for any operator, and bounded for a script that loops."""

MAX_CANDIDATES = 100
"""Decisions shown of one replan: a policy judges a handful."""


Body = TypeVar("Body", bound=BaseModel)
Asked = TypeVar("Asked", bound=Command)
Out = TypeVar("Out", bound=BaseModel)


class Requests(Generic[Body, Asked, Out]):
    """All requests of one kind of this API's process."""

    def __init__(
        self,
        controller: ControllerPort,
        feed: Feed,
        noun: str,
        command: Callable[[str, Body], Asked],
        shown: Callable[[Asked, Projection], Out],
    ) -> None:
        """`command` is what a body becomes under an id, `shown` what is answered of it."""
        self._controller, self._feed, self._noun, self._command, self._shown = controller, feed, noun, command, shown
        self._asked: OrderedDict[str, Asked] = OrderedDict()
        self._keys: OrderedDict[str, tuple[Body, Asked | None]] = OrderedDict()
        """Under each key the body, and the request unless it is in flight."""

    async def ask(self, body: Body, key: str | None) -> Out:
        """Hand a request to the controller once per key. Raises ProblemError when it cannot be."""
        if key is None:
            return self._view(await self._submit(body))
        if key in self._keys:
            return self._view(self._known(body, key))
        self._keys[key] = (body, None)
        try:
            asked = await self._submit(body)
        except BaseException:
            del self._keys[key]
            raise
        self._keys[key] = (body, asked)
        _forget_oldest(self._keys)
        return self._view(asked)

    def view(self, name: str) -> Out:
        """A request by its id. Raises ProblemError if there is none."""
        asked = self._asked.get(name)
        if asked is None:
            raise ProblemError(Kind.NOT_FOUND, f"no {self._noun} {name!r} was asked for here; the latest {KEPT} are kept")
        return self._view(asked)

    def _known(self, body: Body, key: str) -> Asked:
        first, asked = self._keys[key]
        if first != body:
            raise ProblemError(
                Kind.KEY_REUSED,
                f"Idempotency-Key {key!r} belongs to the body {first.model_dump_json()}; take a new key for another one",
            )
        if asked is None:
            raise ProblemError(Kind.IN_FLIGHT, f"the request with Idempotency-Key {key!r} has no answer yet; ask again")
        return asked

    async def _submit(self, body: Body) -> Asked:
        command = self._command(secrets.token_hex(8), body)
        try:
            await self._feed.refresh()
            if self._feed.projection.plan is None:
                raise ProblemError(Kind.NOT_READY, "; ".join(self._feed.reasons()))
            await asyncio.to_thread(self._controller.submit, command)
        except ConnectionError as error:
            raise ProblemError(Kind.CONTROLLER_UNAVAILABLE, f"the controller does not answer: {error}; ask again") from error
        self._asked[command.id] = command
        _forget_oldest(self._asked)
        return command

    def _view(self, asked: Asked) -> Out:
        return self._shown(asked, self._feed.projection)


def replans(controller: ControllerPort, feed: Feed) -> Requests[ReplanIn, ReplanCommand, ReplanOut]:
    """Requests to look at the plan again."""

    def command(name: str, body: ReplanIn) -> ReplanCommand:
        return ReplanCommand(id=name, dry_run=body.dry_run, forced=body.forced)

    def shown(asked: ReplanCommand, projection: Projection) -> ReplanOut:
        decided = projection.decided_for(asked.id, MAX_CANDIDATES)
        return ReplanOut(
            id=asked.id,
            dry_run=asked.dry_run,
            forced=asked.forced,
            state="decided" if decided else "accepted",
            decisions=[DecisionOut(**view) for view in decided],
        )

    return Requests(controller, feed, "replan", command, shown)


def commands(controller: ControllerPort, feed: Feed) -> Requests[CommandIn, VerbCommand, CommandOut]:
    """Requests to pause, resume, abort or go back."""

    def command(name: str, body: CommandIn) -> VerbCommand:
        return VerbCommand(id=name, verb=Verb(body.verb))

    def shown(asked: VerbCommand, projection: Projection) -> CommandOut:
        answer = projection.answer_to(asked.id)
        return CommandOut(
            id=asked.id,
            verb=asked.verb.value,
            state="accepted" if answer is None else "answered",
            done=answer["done"] if answer else None,
            reason=answer["reason"] if answer else None,
        )

    return Requests(controller, feed, "command", command, shown)


def _forget_oldest(entries: OrderedDict[str, Any]) -> None:
    while len(entries) > KEPT:
        entries.popitem(last=False)
