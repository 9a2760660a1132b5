"""The replans that operators asked for through this API, and the keys under which they may ask again.

    POST with a key: new -> submitted; the same body again -> the same answer; another body -> 422; still in flight -> 409

What was decided is found in the projection, by the id of the request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from typing import Any

from nereus.api.feed import Feed
from nereus.api.problems import Kind, ProblemError
from nereus.api.schemas import DecisionOut, ReplanIn, ReplanOut
from nereus.runtime.controller import ControllerPort, ReplanCommand

KEPT = 1000
"""Requests and keys that are remembered, the latest ones: enough for any operator, and bounded for a script that loops."""

MAX_CANDIDATES = 100
"""Decisions shown of one replan: a policy judges a handful."""


class Replans:
    """All requests of this API's process."""

    def __init__(self, controller: ControllerPort, feed: Feed) -> None:
        self._controller, self._feed = controller, feed
        self._asked: OrderedDict[str, ReplanCommand] = OrderedDict()
        self._keys: OrderedDict[str, tuple[ReplanIn, ReplanCommand | None]] = OrderedDict()
        """Under each key the body, and the request unless it is in flight."""

    async def ask(self, body: ReplanIn, key: str | None) -> ReplanOut:
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

    def view(self, name: str) -> ReplanOut:
        """A request by its id. Raises ProblemError if there is none."""
        asked = self._asked.get(name)
        if asked is None:
            raise ProblemError(Kind.NOT_FOUND, f"no replan {name!r} was asked for here; the latest {KEPT} are kept")
        return self._view(asked)

    def _known(self, body: ReplanIn, key: str) -> ReplanCommand:
        first, asked = self._keys[key]
        if first != body:
            raise ProblemError(
                Kind.KEY_REUSED,
                f"Idempotency-Key {key!r} belongs to the body {first.model_dump_json()}; take a new key for another one",
            )
        if asked is None:
            raise ProblemError(Kind.IN_FLIGHT, f"the request with Idempotency-Key {key!r} has no answer yet; ask again")
        return asked

    async def _submit(self, body: ReplanIn) -> ReplanCommand:
        command = ReplanCommand(id=secrets.token_hex(8), dry_run=body.dry_run, forced=body.forced)
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

    def _view(self, asked: ReplanCommand) -> ReplanOut:
        decided = self._feed.projection.decided_for(asked.id, MAX_CANDIDATES)
        return ReplanOut(
            id=asked.id,
            dry_run=asked.dry_run,
            forced=asked.forced,
            state="decided" if decided else "accepted",
            decisions=[DecisionOut(**view) for view in decided],
        )


def _forget_oldest(entries: OrderedDict[str, Any]) -> None:
    while len(entries) > KEPT:
        entries.popitem(last=False)
