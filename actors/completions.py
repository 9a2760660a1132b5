"""Object references of calls in flight, and the events that they turn into."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayTaskError

from nereus.control.events import EndpointDied, Event, OpFailed
from nereus.layout.catalog import EndpointId

Failure = Callable[[str], Event]
"""The event for a call that failed, from the reason."""

POLL_S = 0.05
"""Seconds after which newly submitted calls are waited for as well: a call takes at least a millisecond."""


class Completions:
    """Waits for calls on a thread of its own and posts what they return; a death and an error are events too."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self._new: Queue[tuple[Any, EndpointId, str, Failure | None]] = Queue()
        self._pending: dict[Any, tuple[EndpointId, str, Failure | None]] = {}

    def start(self) -> None:
        """Start to wait."""
        Thread(target=self._run, name="completions", daemon=True).start()

    def add(self, ref: Any, endpoint: EndpointId, what: str, failure: Failure | None = None) -> None:
        """Wait for a call on an endpoint; `what` names it if it fails, and `failure` makes another event of that."""
        self._new.put((ref, endpoint, what, failure))

    def _run(self) -> None:
        while True:
            block = not self._pending
            while block or not self._new.empty():
                ref, endpoint, what, failure = self._new.get()
                self._pending[ref] = endpoint, what, failure
                block = False
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL_S)
            for ref in ready:
                self._post(self._event(ref))

    def _event(self, ref: Any) -> Event:
        endpoint, what, failure = self._pending.pop(ref)
        try:
            event: Event = ray.get(ref)
        except (RayActorError, ActorUnschedulableError):
            return failure("it died") if failure else EndpointDied(endpoint=endpoint, during=what)
        except RayTaskError as error:
            reason = str(error.cause or error).splitlines()[0]
            return failure(reason) if failure else OpFailed(endpoint=endpoint, op=what, error=reason)
        return event
